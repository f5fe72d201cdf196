"""Everyday use of nodes: started, stopped, killed, started twice or with wrong settings, saved, loaded, reset. No map that was shown
is lost or mixed with another."""

import hashlib
import json
import random
import signal
import subprocess

import numpy as np
import pytest

from harness import drive, executable
from test_node import earlier_map
from test_recovery import OFTEN, kill

# Metres between the middles of places that have nothing to do with each other; a lap is 2.4 m wide.
FAR = 10.0

# Seconds between drives, in which a robot gets from one place to any other.
LATER = 60.0


def info(folder):
    """What `magmap info` lists, by name."""
    ended = subprocess.run([executable('magmap'), 'info', '--json', str(folder)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


def contents(folder):
    """Every file below, with a digest of its bytes."""
    files = [path for path in sorted(folder.rglob('*')) if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class Everyday:
    """A robot whose node is started and ended in every way, and what was ever shown of its maps."""

    def __init__(self, session, seed):
        self.session = session
        self.folder = session.folder / 'maps'
        self.chance = random.Random(seed)
        self.mapper = self.robot = self.field = None
        self.place = self.drives = 0
        # Readings in the map of a place, as last shown.
        self.shown = {}

    def start(self, **settings):
        self.mapper = self.session.mapper({**OFTEN, **settings})
        self.field = self.mapper.watch('field')
        self.mapper.wait_diagnostics(lambda report: True, 'a report')
        if self.robot is None:
            self.robot = self.session.robot(self.mapper)
        else:
            self.robot.turn_to(self.mapper)
        # What a node counts begins with the map that it continues.
        self.robot.sent_readings = self.mapper.fresh_diagnostics().count('readings')
        begins_anew = 'continuing the' not in self.mapper.process.log
        if begins_anew:
            self.place = len(self.shown)
        else:
            message = self.field.wait(what='the map that is continued')
            self.place = round((message.info.origin.position.x + 0.5 * message.info.width * message.info.resolution) / FAR)
            assert message.readings_used >= self.shown[self.place]

    def drive(self):
        self.drives += 1
        course = drive(self.chance.choice([3.0, 7.0]), centre=FAR * self.place).later(LATER * self.drives)
        self.robot.drive(course)
        message = self.mapper.finish(self.field)
        assert message.readings_used == self.shown.get(self.place, 0) + len(course)
        self.shown[self.place] = message.readings_used

    def save(self):
        assert f'{self.shown[self.place]} readings in' in self.mapper.do('save')

    def reset(self):
        self.mapper.do('reset')
        self.place = len(self.shown)

    def stop(self):
        assert self.mapper.process.stop() == 0, self.mapper.process.log

    def kill(self):
        kill(self.mapper)

    def start_in_vain(self):
        """Nothing publishes, and the node ends, in whatever way."""
        before = contents(self.folder)
        node = self.session.mapper({**OFTEN, 'node.load_at_start': self.chance.random() < 0.5})
        node.wait_diagnostics(lambda report: True, 'a report')
        node.process.stop(self.chance.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL]))
        assert contents(self.folder) == before

    def start_wrongly(self):
        before = contents(self.folder)
        node = self.session.mapper({**OFTEN, 'selection.delta': 2.0})
        assert node.process.wait() == 2
        assert contents(self.folder) == before

    def start_twice(self):
        second = self.session.mapper({**OFTEN, 'node.map_name': 'map'}, name='second')
        assert second.process.wait() == 1
        assert f'is being written by another process ({self.mapper.process.pid})' in second.process.log
        self.mapper.assert_alive()

    def a_day(self):
        for _ in range(self.chance.choice([0, 0, 1])):
            self.chance.choice([self.start_in_vain, self.start_wrongly])()
        self.start(**{'node.load_at_start': self.chance.random() < 0.7})
        for action in self.chance.choices([self.drive, self.reset, self.start_twice], [4, 1, 1], k=2):
            action()
            if self.place in self.shown and self.chance.random() < 0.3:
                self.save()
        self.chance.choice([self.stop, self.kill])()

    def check(self):
        """Every map that was shown can be had again, by its name."""
        maps = info(self.folder)
        assert {map['state'] for map in maps} <= {'saved', 'unfinished'}, maps
        found = {}
        for name in sorted(map['name'] for map in maps):
            node = self.session.mapper({**OFTEN, 'node.map_name': name})
            field = node.watch('field')
            node.wait_diagnostics(lambda report: True, 'a report')
            if 'continuing the' in node.process.log:
                message = field.wait(what=f'the map {name}')
                known = np.isfinite(message.mean).reshape(message.info.height, message.info.width)
                columns = np.flatnonzero(known.any(axis=0))
                wide = (columns.max() - columns.min() + 1) * message.info.resolution
                assert wide < 0.6 * FAR, f'{name} is {wide:.1f} m wide: a map of two places'
                middle = message.info.origin.position.x + np.mean(columns) * message.info.resolution
                place = round(middle / FAR)
                found[place] = max(found.get(place, 0), message.readings_used)
            node.process.stop()
        lost = {place: readings for place, readings in self.shown.items() if found.get(place, 0) < readings}
        assert not lost, f'lost: {lost}, shown: {self.shown}, found: {found} in {maps}'


@pytest.mark.parametrize('seed', [1, 2])
def test_no_everyday_sequence_loses_or_mixes_maps(session, seed):
    everyday = Everyday(session, seed)
    everyday.start()
    everyday.drive()
    everyday.stop()
    for _ in range(5):
        everyday.a_day()
    everyday.check()


def test_a_node_without_readings_leaves_no_files(session):
    folder = session.folder / 'maps'
    first = session.mapper()
    first.wait_diagnostics(lambda report: report.values['file'] == 'kept', 'a map that would be written')
    assert first.process.stop() == 0
    assert not folder.exists()
    everyday = Everyday(session, 0)
    everyday.start()
    everyday.drive()
    everyday.stop()
    assert list(contents(folder)) == [str(folder / 'map.magmap')]
    for _ in range(3):
        everyday.start_in_vain()


def test_every_day_works_like_the_first(session):
    everyday = Everyday(session, 0)
    for day in range(3):
        everyday.start()
        everyday.drive()
        everyday.stop()
        log = everyday.mapper.process.log
        assert ('continuing the map' in log) == (day > 0)
        assert f'the map holds {everyday.shown[0]} readings in' in log
    assert [(map['name'], map['state'], map['used_readings']) for map in info(everyday.folder)] == [
        ('map', 'saved', everyday.shown[0])
    ]


def test_the_size_of_a_map_is_reported_consistently(session):
    everyday = Everyday(session, 0)
    everyday.start()
    everyday.drive()
    saved = everyday.field.last
    words = f'{saved.readings_used} readings in {saved.update} updates'
    assert words in everyday.mapper.do('save') and words in everyday.mapper.do('flush')
    earlier = earlier_map(everyday.mapper.do('reset'))
    assert everyday.mapper.set_parameter('node.map_name', earlier)[0]
    assert words in everyday.mapper.do('load')
    everyday.mapper.finish(everyday.field)
    assert (everyday.field.last.readings_used, everyday.field.last.update) == (saved.readings_used, saved.update)
    everyday.kill()
    everyday.start(**{'node.map_name': earlier})
    assert words in everyday.mapper.process.log
    assert (everyday.field.last.readings_used, everyday.field.last.update) == (saved.readings_used, saved.update)


def test_rejected_readings_are_counted_immediately(session):
    mapper = session.mapper({'frames.patience': 0.2})
    field = mapper.watch('field')
    course = drive()
    robot = session.robot(mapper).drive(course[:300])
    # From now on no report comes.
    assert mapper.set_parameter('node.diagnostics_rate', 0.01)[0]
    robot.sensor = 'somewhere'
    robot.send(course[300:310], rate=50)
    robot.sensor = 'base_link'
    robot.send(course[310:500], rate=200)
    mapper.do('flush')
    field.wait(lambda message: message.readings_used == 490, '490 readings')
    assert field.last.readings_rejected == 10


def test_robots_in_namespaces_have_maps_of_their_own(session):
    mappers = [session.mapper({'node.map_name': 'map'}, namespace=f'/robot{number}') for number in (1, 2)]
    for number, mapper in enumerate(mappers, start=1):
        robot = session.robot(mapper, magnetometer=f'/robot{number}/imu/mag', odometry=f'/robot{number}/odom')
        robot.drive(drive(3.0))
        assert mapper.process.stop() == 0, mapper.process.log
    assert [map['name'] for map in info(session.folder / 'maps')] == ['robot1/map', 'robot2/map']

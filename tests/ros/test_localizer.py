"""The localizer in a real ROS graph: where it finds the robot, what it answers, and how it starts."""

from dataclasses import replace
import json
import math
import re
import signal
import subprocess

from geometry_msgs.msg import PoseArray, PoseWithCovarianceStamped
from nav_msgs.msg import OccupancyGrid, Odometry
import numpy as np
import pytest
from std_srvs.srv import Empty
from tf2_msgs.msg import TFMessage

from harness import (
    LATCHED,
    NANOSECONDS,
    RELIABLE,
    as_yaml,
    compose,
    deviation_from_truth,
    drive,
    executable,
    harmonic_field_at,
    replace_depth,
    to_nanoseconds,
    to_quaternion,
    to_time,
)

# Seconds for mapping a bag, or for playing one, on a busy machine.
LONG = 180.0

# How many times faster than recorded bags are played.
RATE = 4

# A room, the same in all bags.
ROOM = ['--size', '5x5', '--seed', 4]

# Errors of the odometry that the robot is located by.
DRIFT = ['--drift-scale', 0.03, '--drift-turn', 0.01, '--drift-heading', 0.02, '--drift-slip', 0.01]


def magmap(*arguments):
    command = [executable('magmap'), *map(str, arguments)]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONG)
    assert ended.returncode == 0, f'{" ".join(command)}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}'


@pytest.fixture(scope='module')
def bags(tmp_path_factory):
    """A folder with `mapped`, a bag to map, `second`, to be located by, and `map`, the map of a replay of the first."""
    folder = tmp_path_factory.mktemp('bags')
    # Even the odometry that is mapped has errors, which the map has then.
    small = ['--drift-scale', 0.001, '--drift-heading', 0.0005]
    magmap('simulate', '--out', folder / 'mapped', *ROOM, '--lane-spacing', 0.6, '--duration', 90, *small)
    magmap('simulate', '--out', folder / 'second', *ROOM, '--route', 'random', '--duration', 50, *DRIFT)
    settings = ['--set', 'model.field=vector', '--set', 'learning.max_evaluations=0']
    magmap('replay', folder / 'mapped', '--out', folder / 'map', *settings)
    return folder


def true_start(bag):
    """x, y and heading of the body at the start of a bag."""
    row = np.genfromtxt(bag / 'truth.csv', delimiter=',', names=True, max_rows=1)
    return [float(row[name]) for name in ('body_x', 'body_y', 'heading')]


class Localizer:
    """The node, and what it publishes."""

    STATUS = 'magmap_localizer: localization'

    def __init__(self, session, parameters, process=None):
        self._session = session
        session.diagnostics.pop(self.STATUS, None)
        deep = replace_depth(LATCHED, 5000)
        self.poses = session.collect(PoseWithCovarianceStamped, '/magmap_localizer/pose', deep)
        self.transforms = session.collect(TFMessage, '/tf', replace_depth(RELIABLE, 5000))
        given = {'node.reliability': 'reliable', 'node.diagnostics_rate': 20.0, 'node.complaint_period': 100.0, **parameters}
        arguments = [word for key, value in given.items() for word in ('-p', f'{key}:={as_yaml(value)}')]
        command = [executable('magmap_localizer'), '--ros-args', *arguments]
        self.process = process or session.run(f'localizer_{len(session.processes)}', command)

    @property
    def report(self):
        return self._session.diagnostics.get(self.STATUS)

    def wait_report(self, condition, what, timeout=LONG):
        def seen():
            return f'"{self.report.message}", {self.report.values}' if self.report else f'no report\n{self.process.log}'

        def holds():
            assert self.process.returncode is None, self.process.log
            return self.report is not None and condition(self.report)

        self._session.wait(holds, f'diagnostics: expected {what}', timeout, seen)
        return self.report

    def wait_log(self, text):
        self._session.wait(lambda: text in self.process.log, f'log: expected "{text}"', seen=lambda: self.process.log)

    def play(self, bag):
        """Plays a whole bag, and waits until everything is taken in."""
        self.wait_report(lambda report: True, 'a report')
        command = ['ros2', 'bag', 'play', bag, '--rate', RATE, '--delay', 3, '--read-ahead-queue-size', 10000]
        player = self._session.run(f'player_{len(self._session.processes)}', command)
        self._session.wait(lambda: player.returncode is not None, 'the end of the bag', LONG, lambda: player.log)
        assert player.returncode == 0, player.log
        before = -1
        while before != (before := self.wait_next().count('readings')):
            pass
        self.wait_report(lambda report: report.count('backlog') == 0, 'no backlog')

    def wait_next(self):
        number = self.report.number + 5
        return self.wait_report(lambda report: report.number >= number, 'a new report')

    def path(self):
        """Stamps in nanoseconds, and x, y, heading of the poses."""
        stamps = np.array([to_nanoseconds(message.header.stamp) for message in self.poses.messages])
        return stamps, np.array([pose_of(message.pose.pose) for message in self.poses.messages])


def pose_of(pose):
    return [pose.position.x, pose.position.y, 2 * math.atan2(pose.orientation.z, pose.orientation.w)]


def offline(bag, file, out, *start):
    """The arrays and the report of `magmap locate`."""
    magmap('locate', bag, '--map', file, '--out', out, *start)
    with np.load(out / 'path.npz', allow_pickle=False) as archive:
        return dict(archive), json.loads((out / 'report.json').read_text())


def test_a_map_of_the_mapper_locates_a_second_bag_as_the_offline_run_does(session, bags, tmp_path):
    maps = tmp_path / 'maps'
    settings = tmp_path / 'settings.toml'
    settings.write_text('model.field = "vector"\nlearning.max_evaluations = 0\n')
    arguments = [f'bag:={bags / "mapped"}', 'rate:=8', 'rviz:=false', 'exit:=true', f'map_folder:={maps}', f'config:={settings}']
    mapping = session.run('mapping', ['ros2', 'launch', 'magmap', 'replay.launch.py', *arguments])
    session.wait(lambda: mapping.returncode is not None, 'the end of the launch', LONG, lambda: mapping.log)
    assert mapping.returncode == 0, mapping.log
    (file,) = maps.glob('*.magmap')

    second = bags / 'second'
    start = true_start(second)
    arrays, report = offline(second, file, tmp_path / 'offline', '--from', ','.join(map(str, start)))
    assert report['truth']['error'] < 0.15 and report['truth']['sure_and_wrong'] == 0, report['truth']

    # When the bag is over, the diagnostics say so after this time.
    quiet = tmp_path / 'quiet.toml'
    quiet.write_text('node.complaint_period = 100.0\n')
    launch = [f'config:={quiet}', f'map:={file}', f'initial_pose:={",".join(map(str, start))}', 'reliability:=reliable']
    process = session.run('launch', ['ros2', 'launch', 'magmap', 'localization.launch.py', *launch])
    node = Localizer(session, {}, process)
    particles = session.collect(PoseArray, '/magmap_localizer/particles', RELIABLE)
    node.play(second)
    assert node.wait_next().values['state'] == 'tracking', node.report.values
    assert node.report.level == b'\x00' and node.report.message == 'tracking'

    truth_known = np.isfinite(arrays['truth']).all(axis=1)
    stamps, poses = node.path()
    at = lambda rows, column: np.interp(stamps, arrays['stamp'][truth_known], rows[truth_known, column])  # noqa: E731
    within = (stamps > arrays['stamp'][truth_known][0]) & (stamps < arrays['stamp'][truth_known][-1])
    assert within.sum() > 200, 'expected an update every 5 cm over 25 m'
    errors = np.hypot(poses[:, 0] - at(arrays['truth'], 0), poses[:, 1] - at(arrays['truth'], 1))[within]
    assert abs(np.sqrt(np.mean(errors**2)) - report['truth']['error']) < 0.04, errors
    assert np.hypot(*(poses[-1, :2] - arrays['pose'][-1, :2])) < 0.05, (poses[-1], arrays['pose'][-1])

    cloud = particles.wait(what='particles').poses
    assert np.hypot(*(np.mean([pose_of(pose)[:2] for pose in cloud], axis=0) - poses[-1, :2])) < 0.1
    # It is latched.
    grid = session.collect(OccupancyGrid, '/magmap_localizer/map').wait(what='the map')
    assert grid.header.frame_id == 'map' and max(grid.data) > 50
    assert process.stop() == 0, process.log


def test_it_starts_anywhere_answers_and_starts_again_where_it_was(session, bags):
    second, file = bags / 'second', bags / 'map' / 'map.magmap'
    last_pose = file.with_name('map.pose.json')
    assert not last_pose.exists()
    parameters = {'map': bags / 'map', 'transform_tolerance': 0.25, 'max_particles': 5000}
    node = Localizer(session, parameters)
    node.wait_log('starting anywhere')
    odometry = session.collect(Odometry, '/odom', replace_depth(RELIABLE, 5000))
    node.play(second)
    node.wait_report(lambda report: report.values.get('state') == 'tracking', 'to be found')

    # The transform is dated ahead of odometry, and leads from it to the pose.
    mine = [t for message in node.transforms.messages for t in message.transforms if t.header.frame_id == 'map']
    assert mine and all(t.child_frame_id == 'odom' for t in mine)
    reported = {to_nanoseconds(message.header.stamp): pose_of(message.pose.pose) for message in odometry.messages}
    dated = [to_nanoseconds(t.header.stamp) - NANOSECONDS // 4 for t in mine]
    assert set(dated) <= set(reported) and dated == sorted(dated)
    x, y, heading = reported[dated[-1]]
    shift, turn = mine[-1].transform.translation, 2 * math.atan2(mine[-1].transform.rotation.z, mine[-1].transform.rotation.w)
    stamps, poses = node.path()
    moved = [
        shift.x + math.cos(turn) * x - math.sin(turn) * y,
        shift.y + math.sin(turn) * x + math.cos(turn) * y,
    ]
    assert np.hypot(*(np.array(moved) - poses[-1, :2])) < 0.1, (moved, poses[-1])

    # What it has saved while it ran is enough after a crash.
    session.wait(last_pose.exists, f'{last_pose}')
    node.wait_next()
    session.wait(
        lambda: np.hypot(*(np.array([json.loads(last_pose.read_text())[key] for key in 'xy']) - poses[-1, :2])) < 0.1,
        'the last pose to be saved',
        seen=last_pose.read_text,
    )
    node.process.stop(signal.SIGKILL)
    again = Localizer(session, parameters)
    again.wait_log('starting at ')
    started = [float(number) for number in re.search(r'starting at (\S+), (\S+) m', again.process.log).groups()]
    assert np.hypot(*(np.array(started) - poses[-1, :2])) < 0.1, (started, poses[-1])
    robot = session.publisher(Odometry, '/odom', RELIABLE)

    def stand(stamp=[int(stamps[-1]) + 60 * NANOSECONDS]):
        """Sends odometry of a robot that stands at the origin of its frame."""
        stamp[0] += NANOSECONDS // 20
        message = Odometry(child_frame_id='base_link')
        message.header.stamp, message.header.frame_id = to_time(stamp[0]), 'odom'
        message.pose.pose.orientation = to_quaternion(0.0)
        robot.publish(message)
        return True

    def wait_pose(place, what):
        def is_near():
            stand()
            return bool(again.poses.messages) and np.allclose(pose_of(again.poses.last.pose.pose)[:2], place, atol=0.1)

        session.wait(is_near, what, seen=lambda: again.process.log)

    wait_pose(poses[-1, :2], 'the pose that it knew last')
    again.wait_report(lambda report: report.values.get('state') == 'converging', 'to converge')

    # Somebody says where it is.
    initial = session.publisher(PoseWithCovarianceStamped, '/initialpose', RELIABLE)
    session.wait(lambda: initial.get_subscription_count() == 1, 'a subscription to initialpose')
    said = PoseWithCovarianceStamped()
    said.header.frame_id = 'odom'
    said.pose.pose.position.x, said.pose.pose.position.y = 1.5, 2.5
    said.pose.pose.orientation = to_quaternion(0.5)
    said.pose.covariance[0], said.pose.covariance[7], said.pose.covariance[35] = 0.04, 0.09, 0.01
    initial.publish(said)
    again.wait_log('expected a pose in the frame "map", found "odom"')
    said.header.frame_id = 'map'
    initial.publish(said)
    wait_pose([1.5, 2.5], 'the pose that was given')
    covariance = again.poses.last.pose.covariance
    assert (covariance[0], covariance[35]) == pytest.approx((0.09, 0.01)), covariance
    newest = lambda: again.transforms.last.transforms[0]  # noqa: E731
    session.wait(
        lambda: stand() and np.hypot(newest().transform.translation.x - 1.5, newest().transform.translation.y - 2.5) < 1e-6,
        'the transform to follow',
    )

    session.call(Empty, '/request_nomotion_update')
    session.call(Empty, '/reinitialize_global_localization')
    again.wait_log('reinitialize_global_localization: starting anywhere')
    again.wait_report(lambda report: 'state' not in report.values, 'nothing known')
    assert again.process.stop() == 0, again.process.log


def test_a_mapper_that_follows_the_localizer_waits_while_it_is_unsure(session):
    settings = {'model.field': 'vector', 'vector.hard_iron': 0.0}
    first = session.mapper({**settings, 'node.map_name': 'known'})
    course = drive(seconds=28.0, field=harmonic_field_at)
    session.robot(first).drive(course)
    first.do('save')
    assert first.process.stop() == 0

    # The same again, with odometry that begins elsewhere.
    start = course.poses[0]
    x, y, turn = -2.0, 1.0, 0.5
    elsewhere = replace(course, poses=compose(np.array([x, y, turn]), course.poses)).later(100.0)
    here = dict(zip(('initial_pose.x', 'initial_pose.y', 'initial_pose.yaw'), map(float, start)))
    saved = session.folder / 'maps' / 'known.magmap'
    node = Localizer(session, {'map': saved, 'frames.map': 'map', 'set_initial_pose': True, **here})
    node.wait_report(lambda report: True, 'a report')
    following = {'frames.map': 'map', 'frames.pose_source': 'transforms', 'node.map_name': 'followed', **settings}
    mapper = session.mapper(following)
    field = mapper.watch('field')
    robot = session.robot(mapper, transforms=True, start=elsewhere.poses[0])
    robot.drive(elsewhere)
    known = mapper.finish(field)
    assert known.header.frame_id == 'map' and known.readings_used > 0.9 * len(course)

    def deviation():
        return deviation_from_truth(field.last, lambda x, y: np.linalg.norm(harmonic_field_at(x, y), axis=-1))

    error, cells = deviation()
    # A localizer is some centimetres off, over which this field changes by a microtesla.
    assert error < 3.0 and cells > 100, f'{error:.2f} microtesla over {cells} cells'

    # Nobody knows where the robot is: nothing is mapped.
    session.call(Empty, '/reinitialize_global_localization')
    node.wait_report(lambda report: 'state' not in report.values, 'nothing known')
    robot.drive(elsewhere[:100].later(40.0))
    mapper.finish(field)
    assert field.last.readings_used <= known.readings_used + 10
    report = mapper.fresh_diagnostics()
    unplaced = report.count('waiting for a transform') + report.refused().get('reading_without_transform', 0)
    assert unplaced > 80, report.values
    error, cells = deviation()
    assert error < 3.0 and cells > 100, f'{error:.2f} microtesla over {cells} cells'


def test_what_it_cannot_use_ends_it_with_a_reason(session, bags, tmp_path):
    for parameters, code, reason in [
        ({'map': tmp_path / 'none.magmap'}, 1, 'none.magmap'),
        ({'map': bags / 'map' / 'map.npz'}, 1, 'another file, or a damaged one'),
        ({'map': bags / 'map', 'alpha1': -1.0}, 2, 'localization.alpha1: expected a finite number, 0 or above'),
        ({'map': bags / 'map', 'alpha9': 1.0}, 2, 'alpha9'),
    ]:
        process = Localizer(session, parameters).process
        assert process.wait() == code and reason in process.log, process.log

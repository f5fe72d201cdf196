"""The node against crashes, disks that fail and subscribers that hang: what was mapped is still there, and mapping continues."""

import os
from pathlib import Path
import signal
import subprocess
import sys

from diagnostic_msgs.msg import DiagnosticStatus
import numpy as np
import pytest

from harness import deviation_from_truth, drive, geometry_of
from test_node import TRUE_ENOUGH, WELL_KNOWN

# Checkpoints so often that a lap has several, and batches so small.
OFTEN = {'batch.max_observations': 20, 'store.checkpoint_batches': 3}


def kill(mapper):
    """Ends a node without a warning. What was received before is in the hands of the operating system a moment later."""
    steps = mapper.fresh_diagnostics().count('file: steps written')
    mapper.wait_diagnostics(
        lambda report: report.values['file'] == 'kept' and report.count('file: steps written') >= steps, 'every step in the file'
    )
    # A step is written no later than half a second after it was received.
    for _ in range(20):
        mapper.fresh_diagnostics()
    mapper.process.send_signal(signal.SIGKILL)
    mapper.process.wait()


def equal(first, second):
    assert geometry_of(first.info) == geometry_of(second.info)
    np.testing.assert_array_equal(first.mean, second.mean)
    np.testing.assert_array_equal(first.standard_deviation, second.standard_deviation)


def file_is(state):
    return lambda report: report.values.get('file', '').startswith(state)


def test_a_killed_node_resumes_to_the_map_of_an_undisturbed_one(session):
    undisturbed = session.mapper(OFTEN, name='undisturbed')
    expected = undisturbed.watch('field')
    first = session.mapper(OFTEN)
    robot = session.robot(first, undisturbed)
    course = drive()
    parts = np.array_split(np.arange(len(course)), 4)
    mapper = first
    for part in parts[:-1]:
        robot.drive(course[part[0] : part[-1] + 1])
        kill(mapper)
        mapper = session.mapper(OFTEN)
        mapper.wait_log('continuing the unfinished map')
        robot.turn_to(mapper, undisturbed)
    robot.drive(course[parts[-1][0] :])
    field, whole = mapper.finish(mapper.watch('field')), undisturbed.finish(expected)
    # Nothing lost, nothing twice.
    assert field.readings_used == whole.readings_used == len(course)
    equal(field, whole)


def test_a_completed_map_is_saved_and_never_overwritten_by_another(session):
    first = session.mapper(OFTEN)
    course = drive()
    robot = session.robot(first).drive(course)
    saved = first.finish(first.watch('field'))
    assert first.process.stop() == 0
    file = session.folder / 'maps' / 'map.magmap'
    assert list(file.parent.iterdir()) == [file]
    bytes_of_first = file.read_bytes()

    second = session.mapper({**OFTEN, 'node.load_at_start': False})
    robot.turn_to(second)
    robot.sent_readings = 0
    assert not second.query([(0, 0)]).success
    robot.drive(drive(5.0, centre=3.0).later(60.0))
    assert second.process.stop() == 0
    assert 'is another map: it is kept as' in second.process.log
    (earlier,) = [path for path in file.parent.iterdir() if path != file]
    assert earlier.read_bytes() == bytes_of_first and earlier.name.startswith('map.2')

    third = session.mapper({**OFTEN, 'node.map_name': earlier.stem})
    equal(third.watch('field').wait(), saved)


def test_a_node_without_a_folder_for_its_map_maps_and_reports_it_until_there_is_one(session):
    blocked = session.folder / 'maps'
    blocked.write_text('a file where the folder should be')
    mapper = session.mapper(OFTEN)
    report = mapper.wait_diagnostics(file_is('not kept'), 'a map that is not written')
    assert report.level == DiagnosticStatus.ERROR and 'a crash would lose' in report.message
    course = drive()
    robot = session.robot(mapper).drive(course[: len(course) // 2])
    blocked.unlink()
    robot.drive(course[len(course) // 2 :])
    report = mapper.wait_diagnostics(file_is('kept'), 'a map that is written', timeout=60.0)
    assert report.level == DiagnosticStatus.OK
    field = mapper.finish(mapper.watch('field'))
    error, cells = deviation_from_truth(field)
    assert error < TRUE_ENOUGH and cells > WELL_KNOWN, f'{error:.2f} microtesla over {cells} cells'

    kill(mapper)
    second = session.mapper(OFTEN)
    equal(second.watch('field').wait(), field)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of two megabytes."""
    path = tmp_path / 'disk'
    path.mkdir()
    mount = ['mount', '-t', 'tmpfs', '-o', 'size=2m', 'tmpfs', str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip('a disk of its own needs root')
    yield path
    subprocess.run(['umount', '--lazy', str(path)], check=True)


def test_on_a_full_disk_mapping_continues_and_the_file_when_there_is_space(session, small_disk):
    mapper = session.mapper({**OFTEN, 'node.map_folder': small_disk})
    mapper.wait_diagnostics(file_is('kept'), 'a map that is written')
    course = drive()
    parts = np.array_split(np.arange(len(course)), 3)
    robot = session.robot(mapper).drive(course[: parts[1][0]])
    filler = small_disk / 'filler'
    fill(filler)
    robot.drive(course[parts[1][0] : parts[2][0]])
    report = mapper.wait_diagnostics(file_is('not kept'), 'a map that is not written')
    assert report.level == DiagnosticStatus.ERROR and 'no storage space' in report.message
    mapper.wait_log('the map is no longer written')
    # Saving the map fails too.
    success, message = mapper.ask('save')
    assert not success and 'no storage space' in message
    filler.unlink()
    mapper.wait_diagnostics(file_is('kept'), 'a map that is written', timeout=60.0)
    mapper.wait_log('the map is written again')
    robot.drive(course[parts[2][0] :])
    field = mapper.finish(mapper.watch('field'))
    assert field.readings_used == len(course)
    kill(mapper)
    second = session.mapper({**OFTEN, 'node.map_folder': small_disk})
    equal(second.watch('field').wait(), field)


def fill(path):
    """Takes what space there is, to the last byte."""
    with open(path, 'wb', buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass


def test_a_read_only_disk_is_reported_and_mapping_continues(session, small_disk):
    subprocess.run(['mount', '-o', 'remount,ro', str(small_disk)], check=True)
    mapper = session.mapper({**OFTEN, 'node.map_folder': small_disk})
    report = mapper.wait_diagnostics(file_is('not kept'), 'a map that is not written')
    assert 'Read-only file system' in report.values['file']
    course = drive()
    session.robot(mapper).drive(course)
    subprocess.run(['mount', '-o', 'remount,rw', str(small_disk)], check=True)
    mapper.wait_diagnostics(file_is('kept'), 'a map that is written', timeout=60.0)
    field = mapper.finish(mapper.watch('field'))
    assert field.readings_used == len(course)
    kill(mapper)
    equal(session.mapper({**OFTEN, 'node.map_folder': small_disk}).watch('field').wait(), field)


def test_two_nodes_do_not_write_one_map(session):
    first = session.mapper()
    first.wait_diagnostics(file_is('kept'), 'a map that is written')
    second = session.mapper(name='another', parameters={'node.map_name': 'map'})
    assert second.process.wait() == 1
    assert 'is being written by another process' in second.process.log
    first.assert_alive()


LISTENER = """
import rclpy
from nav_msgs.msg import OccupancyGrid
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
rclpy.init()
node = rclpy.create_node('listener')
quality = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)
node.create_subscription(OccupancyGrid, '/magmap/mean', lambda message: print('heard', flush=True), quality)
rclpy.spin(node)
"""


def resident_megabytes(process):
    status = Path(f'/proc/{process.pid}/status').read_text()
    return int(status.split('VmRSS:')[1].split()[0]) / 1024


def test_a_subscriber_that_never_reads_stops_neither_mapping_nor_publishing(session):
    mapper = session.mapper(OFTEN)
    listener = session.run('listener', [sys.executable, '-c', LISTENER])
    field = mapper.watch('field')
    course = drive()
    robot = session.robot(mapper).drive(course)
    mapper.do('flush')
    session.wait(lambda: 'heard' in listener.log, 'a listener that has heard a map')
    before = resident_megabytes(mapper.process)
    # It stays a reliable subscriber, and takes nothing any more.
    listener.send_signal(signal.SIGSTOP)
    for lap in range(1, 6):
        robot.drive(course.later(60.0 * lap))
        stamp = mapper.finish(field).header.stamp
        assert stamp.sec >= course.reading_stamps[-1] // 1_000_000_000 + 60 * lap - 1
    assert resident_megabytes(mapper.process) < before + 50.0
    assert mapper.process.stop() == 0
    listener.send_signal(signal.SIGCONT)

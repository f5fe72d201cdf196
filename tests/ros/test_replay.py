"""From end to end: a bag played through the launch file gives, to the last cell, the map that the offline replay gives, alone."""

import json
import math
import os
from pathlib import Path
import re
import subprocess
import warnings

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import TransformStamped
from nav_msgs.msg import OccupancyGrid, Path as Message
import numpy as np
import pytest
from rclpy.node import NodeNameNonExistentError
from rclpy.serialization import serialize_message
from rosbag2_py import ConverterOptions, SequentialReader, SequentialWriter, StorageOptions
from sensor_msgs.msg import MagneticField
from std_msgs.msg import Header
from tf2_msgs.msg import TFMessage

from harness import LAP, LATCHED, MICROTESLA, NANOSECONDS, RELIABLE, drive, executable, geometry_of, occupancies_of, refused_readings, to_time
from magmap.msg import FieldMap

DRIVE = Path(os.environ.get('MAGMAP_DATA') or Path(__file__).parents[3] / 'shared/data/aalto-magnetic') / 'invensense/3'

# Seconds for all of it: twenty of playing, and what a busy machine needs to start everything.
TIMEOUT = 180.0


def magmap(*arguments):
    command = [executable('magmap'), *map(str, arguments)]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT)
    assert ended.returncode == 0, f'{" ".join(command)}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}'


@pytest.fixture
def bag(tmp_path):
    bag = tmp_path / 'bag'
    if DRIVE.with_name(f'{DRIVE.name}-mag.csv').exists():
        magmap('convert', DRIVE, '--out', bag, '--storage', 'sqlite3')
    else:
        warnings.warn(f'no drive {DRIVE} (set MAGMAP_DATA): a simulated one instead')
        magmap('simulate', '--out', bag, '--storage', 'sqlite3', '--duration', 120)
    return bag


def test_a_bag_played_into_the_node_gives_the_map_of_the_offline_replay(session, bag, tmp_path):
    offline = OfflineReplay(bag, tmp_path / 'offline')
    online = play(session, bag)
    assert_nothing_was_lost(online, offline)
    assert_same_maps(online, offline)
    assert_same_arrays(tmp_path, offline)
    assert online.field.update == len(offline.report['batches']), 'the number of the first update is 1'


@pytest.mark.parametrize('source', ['odometry', 'transforms'])
def test_a_bag_with_slam_is_mapped_in_the_frame_of_the_map_as_by_the_offline_replay(session, tmp_path, source):
    bag = with_slam(simulated(tmp_path / 'drive', seconds=60, seed=1), tmp_path / 'bag')
    offline = OfflineReplay(bag, tmp_path / 'offline', '--set', 'frames.map=map', '--set', f'frames.pose_source={source}')
    assert offline.report['frame'] == 'map' and int(offline.counters['used_readings']) > 2000
    online = play(session, bag, 'map_frame:=map', f'pose_source:={source}')
    assert_nothing_was_lost(online, offline)
    assert_same_maps(online, offline)
    assert_same_arrays(tmp_path, offline)
    # At 10, 20, ... 60 s.
    assert int(online.values['map jumps']) == 6


def test_at_the_end_of_a_replay_all_of_the_path_is_corrected(session, tmp_path):
    bag = simulated(tmp_path / 'bag', 60, 1, '--drift-scale', 0.02, '--drift-turn', 0.02, '--drift-heading', 0.02)
    offline = OfflineReplay(bag, tmp_path / 'offline', '--slam')
    paths = [session.collect(Message, f'/house/magmap/{name}', LATCHED) for name in ('path', 'odometry_path')]
    online = play(session, bag, 'slam:=true')
    # The length is given in whole metres. Otherwise what was driven since the last correction, up to 4 m, would be missing.
    length = float(online.values['corrected path'].split()[0])
    assert length == pytest.approx(offline.counters['travelled'], abs=0.6)
    corrected, by_odometry = (np.array([[p.pose.position.x, p.pose.position.y] for p in path.last.poses]) for path in paths)
    end = np.loadtxt(tmp_path / 'offline' / 'trajectory.tum')[-1, 1:3]
    # Both have the same readings, and differ in the order in which they came.
    off, uncorrected = (np.linalg.norm(path[-1] - end) for path in (corrected, by_odometry))
    assert off < 0.03 and uncorrected > 0.3, (off, uncorrected)


def test_a_replay_and_the_robot_beside_it_hear_nothing_of_each_other(session, tmp_path):
    bag = simulated(tmp_path / 'bag', seconds=60, seed=1)
    mapper = session.mapper()
    robot = session.robot(mapper, transforms=True)
    replay = Replay(session, bag, 'rate:=4')
    laps = 0

    def is_over():
        nonlocal laps
        robot.drive(drive(LAP).later(laps * LAP))
        laps += 1
        return replay.is_over()

    # The robot drives from before the player starts until after its end.
    session.wait(is_over, 'the end of the bag', TIMEOUT, lambda: replay.process.log)
    assert laps > 3
    replay.assert_all_of(OfflineReplay(bag, tmp_path / 'offline'))
    report = mapper.fresh_diagnostics()
    assert report.count('readings') == robot.sent_readings and report.refused() == {}, report.values
    assert 'several publishers' not in report.values and 'clock' not in mapper.process.log, mapper.process.log
    assert replay.process.stop() == 0, replay.process.log


def test_two_replays_at_once_hear_nothing_of_each_other(session, tmp_path):
    bags = [simulated(tmp_path / name, seconds, seed=seconds) for name, seconds in (('first', 50), ('second', 70))]
    replays = [Replay(session, bag, 'rate:=3') for bag in bags]
    session.wait(
        lambda: all(replay.is_over() for replay in replays),
        'the end of both bags',
        TIMEOUT,
        lambda: '\n'.join(replay.process.log for replay in replays),
    )
    assert replays[0].namespace != replays[1].namespace
    for replay, bag in zip(replays, bags):
        replay.assert_all_of(OfflineReplay(bag, tmp_path / f'{bag.name}-offline'))
        assert replay.process.stop() == 0, replay.process.log
    # A map is named after its recording, and not after a namespace that nobody will use again.
    maps = Path(os.environ['ROS_HOME']) / 'magmap' / 'replays'
    assert {path.name.split('-')[0] for path in maps.iterdir() if path.is_file()} == {'first', 'second'}


def test_every_name_of_a_replay_is_its_own(session, tmp_path):
    # A robot's settings, which name the topics of the robot.
    settings = tmp_path / 'settings.toml'
    settings.write_text('topics.magnetometer = "/imu/mag"\ntopics.odometry = "/odom"\n')
    replay = Replay(session, simulated(tmp_path / 'bag', seconds=60, seed=1), f'config:={settings}')
    session.wait(lambda: topics_of(session, replay, 'rosbag2_player'), 'the player', TIMEOUT)
    # Those of every node.
    common = {'/rosout', '/parameter_events'}
    for node in ('magmap', 'rosbag2_player'):
        names = topics_of(session, replay, node)
        assert names and {name for name in names if not name.startswith(f'{replay.namespace}/')} <= common, names
    heard = topics_of(session, replay, 'magmap')
    assert {f'{replay.namespace}/{name}' for name in ('imu/mag', 'odom', 'tf', 'tf_static', 'clock', 'diagnostics')} <= heard
    assert replay.process.stop() == 0, replay.process.log


def topics_of(session, replay, node):
    """The topics and services of a node in the namespace of a replay."""
    try:
        return {
            name
            for names in (
                session.ros.get_publisher_names_and_types_by_node,
                session.ros.get_subscriber_names_and_types_by_node,
                session.ros.get_service_names_and_types_by_node,
            )
            for name, _ in names(node, replay.namespace)
        }
    except NodeNameNonExistentError:
        return set()


def test_a_replay_in_a_namespace_that_is_used_is_rejected(session, tmp_path):
    bag = simulated(tmp_path / 'bag', seconds=20, seed=1)
    # Created for what it does as long as it exists.
    driver = session.publisher(MagneticField, '/robot/imu/mag')
    arguments = [f'bag:={bag}', 'namespace:=robot', 'rviz:=false']
    replay = session.run('launch', ['ros2', 'launch', 'magmap', 'replay.launch.py', *arguments])
    assert replay.wait(TIMEOUT) == 1, replay.log
    last = replay.log.splitlines()[-1]
    assert last.startswith('/robot/imu/mag: expected no publisher yet, found one'), replay.log
    session.ros.destroy_publisher(driver)


def simulated(bag, seconds, seed, *arguments):
    magmap('simulate', '--out', bag, '--storage', 'sqlite3', '--duration', seconds, '--size', '4x4', '--seed', seed, *arguments)
    return bag


def with_slam(drive, bag):
    """The drive with the transform from odometry to the map ten times a second, which SLAM corrects every ten seconds."""
    reader, writer = SequentialReader(), SequentialWriter()
    converter = ConverterOptions('cdr', 'cdr')
    reader.open(StorageOptions(str(drive), 'sqlite3'), converter)
    writer.open(StorageOptions(str(bag), 'sqlite3'), converter)
    for topic in reader.get_all_topics_and_types():
        writer.create_topic(topic)
    first, due = None, 0
    while reader.has_next():
        topic, data, stamp = reader.read_next()
        if topic == '/tf' and stamp >= due:
            first, due = first or stamp, stamp + NANOSECONDS // 10
            writer.write('/tf', serialize_message(slam((stamp - first) // (10 * NANOSECONDS), stamp)), stamp)
        writer.write(topic, data, stamp)
    return bag


def slam(corrections, stamp):
    transform = TransformStamped(header=Header(frame_id='map', stamp=to_time(stamp)), child_frame_id='odom')
    transform.transform.translation.x, transform.transform.translation.y = 3.0 + 0.2 * corrections, -1.0
    transform.transform.rotation.z, transform.transform.rotation.w = math.sin(0.25), math.cos(0.25)
    return TFMessage(transforms=[transform])


class Replay:
    """A replay in a terminal of its own, whose namespace is found as a person does: in what it says."""

    def __init__(self, session, bag, *arguments):
        parameters = session.folder / 'parameters.yaml'
        parameters.write_text('/**: {ros__parameters: {node.diagnostics_rate: 10.0}}')
        given = [f'bag:={bag}', 'rviz:=false', f'params_file:={parameters}', *arguments]
        self.process = session.run(f'replay-{bag.name}', ['ros2', 'launch', 'magmap', 'replay.launch.py', *given])
        found = lambda: re.search(r'replaying \S+ in (/\w+):', self.process.log)  # noqa: E731
        session.wait(found, 'the namespace of the replay', TIMEOUT, lambda: self.process.log)
        self.namespace = found()[1]
        self.mapper = session.launched(f'{self.namespace}/magmap', self.process)

    def is_over(self):
        self.mapper.assert_alive()
        return 'the bag is over and the map flushed' in self.process.log

    def assert_all_of(self, offline):
        """It has mapped every reading of its bag, and no other."""
        report, counters = self.mapper.fresh_diagnostics(), offline.counters
        # Readings waiting for a pose at the end of a bag are rejected offline; a node cannot know that it is the end.
        expected = {reason: count for reason, count in counters['rejections'].items() if count and reason != 'no_later_pose'}
        assert report.refused() == expected
        counts = [report.count(key) for key in ('readings', 'readings used', 'observations', 'readings lost', 'map jumps')]
        assert counts == [counters['readings'], counters['used_readings'], counters['observations'], 0, 0], report.values
        assert 'several publishers' not in report.values, report.values


class OfflineReplay:
    def __init__(self, bag, folder, *settings):
        magmap('replay', bag, '--out', folder, *settings)
        self.report = json.loads((folder / 'report.json').read_text())
        self.counters = self.report['counters']
        self.scales = self.report['batches'][-1]['grids']
        with np.load(folder / 'map.npz', allow_pickle=False) as archive:
            self.arrays = dict(archive)


class Played:
    """What an independent subscriber has seen in the end."""

    def __init__(self, mean, variance, field, reports):
        self.mean, self.variance, self.field = mean, variance, field
        self.values = {pair.key: pair.value for pair in reports[-1].values}


def play(session, bag, *settings):
    # More reports than one a second, so that the last one was made when everything had been received. In a namespace that is known
    # before it starts, everything can be collected.
    parameters = session.folder / 'parameters.yaml'
    parameters.write_text('/**: {ros__parameters: {node.diagnostics_rate: 10.0}}')
    maps = {
        'mean': session.collect(OccupancyGrid, '/house/magmap/mean'),
        'variance': session.collect(OccupancyGrid, '/house/magmap/variance'),
        'field': session.collect(FieldMap, '/house/magmap/field'),
    }
    diagnostics = session.collect(DiagnosticArray, '/house/diagnostics', RELIABLE)
    arguments = ['rate:=10', 'rviz:=false', 'exit:=true', 'reliability:=reliable', f'params_file:={parameters}', *settings]
    command = ['ros2', 'launch', 'magmap', 'replay.launch.py', f'bag:={bag}', 'namespace:=house', *arguments]
    launch = session.run('launch', command)
    session.wait(lambda: launch.returncode is not None, 'the end of the launch', TIMEOUT, lambda: launch.log)
    assert launch.returncode == 0, f'exit code {launch.returncode}\n{launch.log}'
    assert 'the bag is over and the map flushed' in launch.log, launch.log
    reports = [status for array in diagnostics.messages for status in array.status if status.name == 'house/magmap: mapping']
    assert reports and all(collector.messages for collector in maps.values()), launch.log
    assert len(maps['mean'].messages) > 3, 'the map is to be seen while it grows'
    return Played(maps['mean'].last, maps['variance'].last, maps['field'].last, reports)


def assert_nothing_was_lost(online, offline):
    field, counters = online.field, offline.counters
    losses = {key: online.values[key] for key in ('readings lost', 'poses lost', 'batches merged')}
    assert set(losses.values()) == {'0'}, losses
    assert field.readings_lost == 0
    refused = {reason: int(online.values[f'rejected: {reason}']) for reason in counters['rejections']}
    # Readings waiting for a pose or a transform at the end of a bag are rejected offline; a node cannot know that it is the end.
    expected = {**counters['rejections'], 'no_later_pose': 0, 'reading_without_transform': 0, 'pose_without_transform': 0}
    assert refused == expected
    assert int(online.values['readings']) == counters['readings']
    assert field.readings_used == counters['used_readings']
    assert field.observations == counters['observations']
    assert field.readings_used + refused_readings(counters['rejections']) == counters['readings']
    assert field.readings_rejected == refused_readings(expected)


def assert_same_maps(online, offline):
    arrays, field = offline.arrays, online.field
    rows, columns = arrays['mean'].shape
    geometry = (columns, rows, np.float32(arrays['resolution']), *arrays['origin'])
    for message in (online.mean, online.variance, field):
        assert message.header.frame_id == offline.report['frame']
        assert message.header.stamp == field.header.stamp
        assert geometry_of(message.info) == geometry
        assert message.info.origin.orientation.w == 1.0
    stamp = field.header.stamp.sec + 1e-9 * field.header.stamp.nanosec
    assert stamp == pytest.approx(offline.report['batches'][-1]['stamp'], abs=1e-6)

    known = np.isfinite(arrays['mean']).ravel()
    assert 0.1 < known.mean() < 1.0, 'a map with known and with unknown cells'
    layers = {
        'mean': (online.mean, arrays['mean'], offline.scales['mean']),
        'variance': (online.variance, arrays['standard_deviation'] ** 2, offline.scales['variance']),
    }
    for name, (message, values, (low, high)) in layers.items():
        expected = occupancies_of(values.ravel(), low, high)
        different = np.flatnonzero(np.asarray(message.data) != expected)
        assert different.size == 0, f'{name}: {different.size} of {expected.size} cells differ, the first is {different[0]}'
        assert len(np.unique(expected)) > 50

    assert_equal_floats(field.mean, MICROTESLA * arrays['mean'])
    assert_equal_floats(field.standard_deviation, MICROTESLA * arrays['standard_deviation'])
    ends = [field.mean_low, field.mean_high]
    assert ends == pytest.approx([MICROTESLA * end for end in offline.scales['mean']], rel=1e-12)
    ends = [field.variance_low, field.variance_high]
    assert ends == pytest.approx([MICROTESLA**2 * end for end in offline.scales['variance']], rel=1e-12)
    assert list(field.hyperparameter_names) == list(arrays['hyperparameter_names'])
    assert list(field.hyperparameters) == pytest.approx(list(arrays['hyperparameters']), rel=1e-12)
    points = np.array([[point.x, point.y] for point in field.inducing_points])
    np.testing.assert_allclose(points, arrays['inducing_points'], rtol=0, atol=1e-12)


def assert_same_arrays(folder, offline):
    """The map that the node has saved is that of the offline replay to the last bit."""
    [saved] = (Path(os.environ['ROS_HOME']) / 'magmap' / 'replays').glob('*.magmap')
    magmap('export', saved, '--format', 'npz', '--out', folder / 'online')
    with np.load(folder / 'online' / 'map.npz', allow_pickle=False) as online:
        assert set(online) == set(offline.arrays)
        for name, expected in offline.arrays.items():
            np.testing.assert_array_equal(online[name], expected, err_msg=name, strict=True)


def assert_equal_floats(found, expected):
    expected = expected.ravel().astype(np.float32)
    np.testing.assert_allclose(np.asarray(found, dtype=np.float32), expected, rtol=1e-6, atol=0, equal_nan=True)

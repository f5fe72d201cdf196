"""The node beside another SLAM, whose path corrects the map."""

import signal
import time

from geometry_msgs.msg import PoseStamped
from nav_msgs.msg import Path
import numpy as np
import pytest

from harness import drive, field_at, LATCHED, MICROTESLA, RELIABLE, strength_at, to_quaternion, to_time
from test_slam import drifting, off_the_eight

try:
    import slam_toolbox.msg as messages
except ImportError:
    messages = None

# Four laps of 11 m, all on the same eight.
SECONDS = 56.0

FOLLOWING = {'slam.path_topic': '/path', 'model.field': 'strength'}

# How far the graph bends before it closes, in metres.
BEND = 2.0

WARN = b'\x01'


class OtherSlam:
    """Publishes where the robot was, five times a second, as it believes at the moment."""

    def __init__(self, session, *mappers):
        self._publisher = session.publisher(Path, '/path', RELIABLE)
        expected = f'{len(mappers)} nodes that listen to the path'
        session.wait(lambda: self._publisher.get_subscription_count() >= len(mappers), expected)

    def say(self, course, bend=0.0, frame='map', later=0):
        message = Path()
        message.header.frame_id = frame
        for stamp, (x, y, heading) in list(zip(course.pose_stamps, course.poses))[::10]:
            pose = PoseStamped()
            pose.header.stamp, pose.header.frame_id = to_time(int(stamp) + later), frame
            seconds = (int(stamp) - int(course.pose_stamps[0])) / 1e9
            pose.pose.position.x, pose.pose.position.y = float(x), float(y + bend * (seconds / SECONDS) ** 2)
            pose.pose.orientation = to_quaternion(float(heading))
            message.poses.append(pose)
        self.publish(message)
        return message

    def publish(self, message):
        self._publisher.publish(message)


class SlamToolbox(OtherSlam):
    """Publishes the same as a pose graph, and the stamp of each node once."""

    def __init__(self, session, *mappers):
        self._known = set()
        self._events = session.publisher(messages.NewNodeEvent, '/slam/new_node_event', RELIABLE)
        self._publisher = session.publisher(messages.PoseGraph, '/slam/pose_graph', RELIABLE)
        publishers = (self._events, self._publisher)
        is_heard = lambda: all(publisher.get_subscription_count() >= len(mappers) for publisher in publishers)  # noqa: E731
        session.wait(is_heard, 'nodes that listen to the graph')

    def publish(self, message):
        graph = messages.PoseGraph(header=message.header)
        for node, stamped in enumerate(message.poses):
            graph.nodes.append(messages.GraphNode(node_id=node, pose=stamped.pose))
            if node not in self._known:
                self._known.add(node)
                self._events.publish(messages.NewNodeEvent(new_node_id=node, stamp=stamped.header.stamp, pose=stamped.pose))
        # Optimising a graph takes its time.
        time.sleep(0.5)
        self._publisher.publish(graph)


def moved_most(report):
    """By how much the path has moved a place of odometry, in metres."""
    words = report.values.get('corrected path', '0 m').split()
    return float(words[-2]) if len(words) > 2 else 0.0


def length_of(report):
    """How much of the path is corrected, in metres."""
    return float(report.values.get('corrected path', '0 m').split()[0])


def is_closed(report):
    """Whether the whole path is corrected, and by less than the graph was bent."""
    return length_of(report) > 44 and 0.3 < moved_most(report) < 1.2


def mean_error(field, course):
    """Of the strength in the cells on the drive, in microtesla: root mean square."""
    info = field.info
    cells = np.floor((course.poses[:, :2] - [info.origin.position.x, info.origin.position.y]) / info.resolution).astype(int)
    columns, rows = np.unique(cells, axis=0).T
    x = info.origin.position.x + (columns + 0.5) * info.resolution
    y = info.origin.position.y + (rows + 0.5) * info.resolution
    return np.sqrt(np.nanmean((np.asarray(field.mean)[rows * info.width + columns] - strength_at(x, y)) ** 2)) / MICROTESLA


def test_a_graph_that_bends_and_closes_moves_the_map_while_mapping_goes_on(session):
    mapper = session.mapper(FOLLOWING)
    without = session.mapper({'model.field': 'strength'}, name='without')
    field, drifted = mapper.watch('field'), without.watch('field')
    paths = [session.collect(Path, f'{mapper.name}/{name}', LATCHED) for name in ('path', 'odometry_path')]
    robot, slam = session.robot(mapper, without), OtherSlam(session, mapper)
    course = drive(SECONDS, field=field_at)
    by_odometry = drifting(course)
    third = len(course) // 3
    for part in range(3):
        robot.drive(by_odometry[part * third : (part + 1) * third])
        slam.say(course[: (part + 1) * third], bend=BEND)
    robot.drive(by_odometry[3 * third :])
    mapper.do('flush')
    mapper.wait_diagnostics(lambda report: moved_most(report) > 1.2, 'a map that is bent', timeout=120.0)
    assert 'another SLAM corrects the path: ' in mapper.process.log
    updates = mapper.fresh_diagnostics().count('updates')
    final = slam.say(course)
    mapper.wait_diagnostics(is_closed, 'a map that is closed', timeout=120.0)
    mapper.finish(field)
    drifted_map = without.finish(drifted)

    assert field.last.header.frame_id == 'map' and drifted_map.header.frame_id == 'odom'
    # Nothing was lost, and nothing learnt twice, while the map was made again.
    report = mapper.fresh_diagnostics()
    assert field.last.readings_used == len(course) and field.last.readings_lost == 0
    assert report.count('updates') == updates == without.fresh_diagnostics().count('updates')
    assert report.count('paths of another SLAM') == 4 and report.count('paths of another SLAM: rejected') == 0
    assert report.count('paths of another SLAM: poses that correct the map') == len(final.poses)
    corrected, uncorrected = (path.wait(lambda message: len(message.poses) > 100, 'the whole path') for path in paths)
    assert off_the_eight(uncorrected, course) > 0.3 and off_the_eight(corrected, course) < 0.05
    assert mean_error(field.last, course) < 0.5 * mean_error(drifted_map, course)
    # Another SLAM publishes where odometry is.
    publishers = session.ros.get_publishers_info_by_topic('/tf')
    assert 'magmap' not in [publisher.node_name for publisher in publishers]


def test_a_path_that_does_not_fit_is_rejected_counted_and_reported(session):
    mapper = session.mapper(FOLLOWING)
    field = mapper.watch('field')
    robot, slam = session.robot(mapper), OtherSlam(session, mapper)
    course = drive(14.0, field=field_at)
    robot.drive(course)
    mapper.finish(field)
    before = field.last.mean
    right = slam.say(course[:1])
    nan = Path(header=right.header, poses=list(right.poses))
    nan.poses[0].pose.position.x = float('nan')
    faults = [
        (lambda: slam.say(course, frame='elsewhere'), 'it is in frame "elsewhere", the map in "map"; set frames.map'),
        (lambda: slam.publish(Path(header=right.header, poses=2 * slam.say(course[:1]).poses)), 'the stamp of pose 1 is not after'),
        (lambda: slam.publish(nan), 'pose 0 has a number that is not finite'),
        (lambda: slam.say(course, later=10**12), 'no pose of the path on /path has a stamp for which odometry is known'),
    ]
    for send, words in faults:
        send()
        report = mapper.wait_diagnostics(lambda report: words in report.message, words)
        assert report.level == WARN
    assert report.count('paths of another SLAM: rejected') == 3
    for _, words in faults[:3]:
        assert words in mapper.process.log
    slam.say(course)
    mapper.wait_diagnostics(lambda report: report.message != faults[3][1] and report.level == b'\x00', 'a report that all is well')
    mapper.finish(field)
    np.testing.assert_allclose(field.last.mean, before, atol=1.5 * MICROTESLA)


def test_a_path_goes_on_correcting_after_a_crash(session):
    course = drive(SECONDS, field=field_at)
    by_odometry = drifting(course)
    first = session.mapper(FOLLOWING)
    robot, slam = session.robot(first), OtherSlam(session, first)
    half = len(course) // 2
    robot.drive(by_odometry[:half])
    first.do('flush')
    slam.say(course[:half], bend=BEND)
    first.wait_diagnostics(lambda report: length_of(report) > 20, 'a corrected path', timeout=120.0)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()

    second = session.mapper(FOLLOWING)
    second.wait_log('continuing the unfinished map')
    field = second.watch('field')
    robot.turn_to(second)
    robot.drive(by_odometry[half:])
    second.do('flush')
    OtherSlam(session, second).say(course)
    second.wait_diagnostics(is_closed, 'a closed path', timeout=120.0)
    second.finish(field)
    assert field.last.readings_used == len(course)
    path = session.collect(Path, f'{second.name}/path', LATCHED).wait(lambda message: len(message.poses) > 100, 'the path')
    assert off_the_eight(path, course) < 0.05
    assert second.process.stop() == 0

    # What odometry alone says may not be added to it.
    other = session.mapper({'frames.map': 'map'})
    assert other.process.wait() == 1 and 'was corrected or merged with others' in other.process.log


def test_what_does_not_go_together_is_rejected(session):
    for parameters, words in [
        ({'slam.enabled': True}, 'the path is corrected by the field or given, not both'),
        ({'frames.pose_source': 'transforms', 'frames.map': 'map'}, 'corrections move odometry'),
    ]:
        process = session.mapper({'slam.path_topic': '/path', **parameters}).process
        assert process.wait() == 2 and words in process.log, process.log
    process = session.mapper({'slam.path_type': 'pose_graph'}).process
    assert process.wait() == 1 and 'slam.path_topic: expected the topic of the pose graph' in process.log, process.log


def test_the_pose_graph_of_slam_toolbox_corrects_the_map(session):
    following = {**FOLLOWING, 'slam.path_topic': '/slam/pose_graph', 'slam.path_type': 'pose_graph'}
    if not hasattr(messages, 'PoseGraph'):
        process = session.mapper(following).process
        assert process.wait() == 1 and 'there was no slam_toolbox with the message slam_toolbox/msg/PoseGraph' in process.log
        pytest.skip('no slam_toolbox with the message PoseGraph is installed: only its absence was tested')
    mapper = session.mapper(following)
    field = mapper.watch('field')
    robot, slam = session.robot(mapper), SlamToolbox(session, mapper)
    course = drive(SECONDS, field=field_at)
    by_odometry = drifting(course)
    half = len(course) // 2
    robot.drive(by_odometry[:half])
    slam.say(course[:half], bend=BEND)
    robot.drive(by_odometry[half:])
    mapper.do('flush')
    mapper.wait_diagnostics(lambda report: moved_most(report) > 0.3, 'a corrected map', timeout=120.0)
    final = slam.say(course)
    mapper.wait_diagnostics(is_closed, 'a map that is closed', timeout=120.0)
    mapper.finish(field)
    report = mapper.fresh_diagnostics()
    assert report.count('paths of another SLAM') == 2 and report.count('paths of another SLAM: rejected') == 0
    assert report.count('paths of another SLAM: poses that correct the map') == len(final.poses)
    path = session.collect(Path, f'{mapper.name}/path', LATCHED).wait(lambda message: len(message.poses) > 100, 'the path')
    assert off_the_eight(path, course) < 0.05

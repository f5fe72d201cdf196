"""The node where odometry drifts: the field corrects the path, and the map is that of the corrected one."""

from dataclasses import replace
import signal

from geometry_msgs.msg import PoseWithCovarianceStamped
from nav_msgs.msg import Path
import numpy as np
import pytest
from tf2_msgs.msg import TFMessage

from harness import compose, drive, harmonic_field_at, LATCHED, MICROTESLA, RELIABLE, to_nanoseconds

# Nearly six laps of 11 m, all on the same eight.
SECONDS = 80.0

SLAM = {'slam.enabled': True}

# Odometry reports distances that are too long, and turns too much to the left, in radians per metre.
SCALE, DRIFT = 0.02, 0.012

# Of the 65.8 m: the path is corrected every four metres, and what is driven since is as odometry says. A busy machine corrects it less often,
# but catches up.
NEARLY_ALL = 61.0


def drifting(course):
    """The same drive by odometry that drifts."""
    steps = np.diff(course.poses, axis=0)
    lengths = np.linalg.norm(steps[:, :2], axis=1)
    heading = course.poses[:-1, 2]
    forward = np.cos(heading) * steps[:, 0] + np.sin(heading) * steps[:, 1]
    aside = np.cos(heading) * steps[:, 1] - np.sin(heading) * steps[:, 0]
    poses = [course.poses[0]]
    for step in zip((1 + SCALE) * forward, (1 + SCALE) * aside, steps[:, 2] + DRIFT * lengths):
        poses.append(compose(poses[-1], np.array(step)))
    return replace(course, poses=np.array(poses))


def is_corrected(length):
    """Whether the report is of a path that is corrected and at least this long."""
    return lambda report: float(report.values.get('corrected path', '0').split()[0]) >= length


def in_plane(pose):
    return np.array([pose.position.x, pose.position.y, 2 * np.arctan2(pose.orientation.z, pose.orientation.w)])


def off_the_eight(path, course):
    """The largest distance of a place of the path from the drive, in metres."""
    places = np.array([[pose.pose.position.x, pose.pose.position.y] for pose in path.poses])
    return max(np.linalg.norm(course.poses[:, :2] - place, axis=1).min() for place in places)


def mean_error(field, course):
    """Of the strength in the cells on the drive, in microtesla: root mean square."""
    info = field.info
    cells = np.floor((course.poses[:, :2] - [info.origin.position.x, info.origin.position.y]) / info.resolution).astype(int)
    columns, rows = np.unique(cells, axis=0).T
    x = info.origin.position.x + (columns + 0.5) * info.resolution
    y = info.origin.position.y + (rows + 0.5) * info.resolution
    truth = np.linalg.norm(harmonic_field_at(x, y), axis=-1)
    mapped = np.asarray(field.mean)[rows * info.width + columns]
    return np.sqrt(np.mean((mapped - truth) ** 2)) / MICROTESLA


def test_the_field_corrects_the_path_and_the_map(session):
    mapper = session.mapper(SLAM)
    without = session.mapper({'model.field': 'vector'}, name='without')
    field, drifted = mapper.watch('field'), without.watch('field')
    paths = [session.collect(Path, f'{mapper.name}/{name}', LATCHED) for name in ('path', 'odometry_path')]
    pose = session.collect(PoseWithCovarianceStamped, f'{mapper.name}/pose', LATCHED)
    transforms = session.collect(TFMessage, '/tf', RELIABLE)
    robot = session.robot(mapper, without)
    course = drive(SECONDS, field=harmonic_field_at)
    by_odometry = drifting(course)
    robot.drive(by_odometry)
    mapper.wait_diagnostics(is_corrected(NEARLY_ALL), 'a corrected path', timeout=120.0)
    assert 'the field corrects the path: ' in mapper.process.log
    assert abs(float(mapper.diagnostics.values['delay of readings'].split()[0])) < 0.03
    # A robot that stands still is where it was.
    last = to_nanoseconds(pose.last.header.stamp)
    robot.send_pose(last + 20_000_000, by_odometry.poses[-1])
    mapper.finish(field)
    drifted_map = without.finish(drifted)

    assert field.last.header.frame_id == 'map' and drifted_map.header.frame_id == 'odom'
    assert len(field.last.axes) == 3 * len(field.last.mean) and field.last.readings_used == len(course)
    away = np.linalg.norm(by_odometry.poses[-1, :2] - course.poses[-1, :2])
    assert away > 0.4, away
    session.wait(lambda: to_nanoseconds(pose.last.header.stamp) > last, 'the pose of the last odometry')
    (link,) = transforms.last.transforms
    assert (link.header.frame_id, link.child_frame_id) == ('map', 'odom')
    # Dated ahead by 0.1 s, so that it is valid until the next one.
    assert to_nanoseconds(link.header.stamp) == to_nanoseconds(pose.last.header.stamp) + 100_000_000
    moved, turn = link.transform.translation, 2 * np.arctan2(link.transform.rotation.z, link.transform.rotation.w)
    found = compose(np.array([moved.x, moved.y, turn]), by_odometry.poses[-1])
    np.testing.assert_allclose(in_plane(pose.last.pose.pose)[:2], found[:2], atol=1e-6)
    # Since the last correction up to four metres were driven by odometry, which adds a few centimetres.
    assert np.linalg.norm(found[:2] - course.poses[-1, :2]) < 0.25 * away, (found, course.poses[-1])
    deviations = np.sqrt(np.diag(np.reshape(pose.last.pose.covariance, (6, 6))))
    assert (deviations[[0, 1, 5]] > 1e-3).all() and (deviations[[0, 1, 5]] < 0.2).all() and (deviations[[2, 3, 4]] == 0).all()

    corrected, uncorrected = (path.wait(lambda message: len(message.poses) > 100, 'the whole path') for path in paths)
    assert corrected.header.frame_id == uncorrected.header.frame_id == 'map'
    by_odometry_off = off_the_eight(uncorrected, course)
    assert by_odometry_off > 0.5 and off_the_eight(corrected, course) < 0.35 * by_odometry_off, by_odometry_off
    assert mean_error(field.last, course) < 0.5 * mean_error(drifted_map, course)
    values = mapper.fresh_diagnostics().values
    assert float(values['drift of odometry'].split()[0]) == pytest.approx(-DRIFT, abs=0.006)


def test_a_corrected_path_continues_after_a_crash(session):
    course = drive(SECONDS, field=harmonic_field_at)
    by_odometry = drifting(course)
    first = session.mapper(SLAM)
    robot = session.robot(first)
    half = len(course) // 2
    robot.drive(by_odometry[:half])
    first.wait_diagnostics(is_corrected(20.0), 'a corrected path', timeout=120.0)
    first.do('flush')
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()

    second = session.mapper(SLAM)
    second.wait_log('continuing the unfinished map')
    field = second.watch('field')
    robot.turn_to(second)
    robot.drive(by_odometry[half:])
    second.wait_diagnostics(is_corrected(NEARLY_ALL), 'a corrected path', timeout=120.0)
    second.finish(field)
    assert field.last.readings_used == len(course)
    path = session.collect(Path, f'{second.name}/path', LATCHED).wait(lambda message: len(message.poses) > 100, 'the path')
    assert off_the_eight(path, course) < 0.25
    assert second.process.stop() == 0

    # Without SLAM nobody may add to it what odometry says.
    other = session.mapper({'frames.map': 'map'})
    assert other.process.wait() == 1
    assert 'was corrected or merged with others' in other.process.log


def test_odometry_in_the_frame_of_the_map_is_said(session):
    mapper = session.mapper({**SLAM, 'frames.map': 'odom'})
    session.robot(mapper)
    mapper.wait_log('the frame of odometry is "odom", as that of the map; set frames.map to another name')


def test_slam_says_what_it_needs(session):
    for parameters, words in [
        ({'model.field': 'strength'}, 'the strength alone does not say where the robot is'),
        ({'frames.pose_source': 'transforms', 'frames.map': 'map'}, 'corrections move odometry'),
    ]:
        process = session.mapper({**SLAM, **parameters}).process
        assert process.wait() == 2 and words in process.log, process.log

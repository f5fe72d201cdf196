"""A robot that is switched off, carried elsewhere and switched on again: its node finds it in the map, or keeps what it drives apart."""

from dataclasses import replace

from diagnostic_msgs.msg import DiagnosticStatus
import numpy as np
import pytest
from tf2_msgs.msg import TFMessage

from harness import compose, drive, field_at, harmonic_field_at, RELIABLE

# Lengths of an eight of 11 m: three laps, and two more after the reboot. A map of strengths needs a longer way.
SECONDS = {'vector': (42.0, 28.0), 'strength': (42.0, 56.0)}


def settings(field, **others):
    return {'model.field': field, **others}


def after_a_reboot(course, frame):
    """The same drive by odometry whose frame is here in the one of before."""
    x, y, heading = frame
    inverse = compose(np.array([0.0, 0.0, -heading]), np.array([-x, -y, 0.0]))
    return replace(course, poses=compose(inverse, course.poses))


def of_planar(transform):
    rotation = transform.rotation
    return np.array([transform.translation.x, transform.translation.y, 2 * np.arctan2(rotation.z, rotation.w)])


def in_the_map(known):
    return lambda report: ('looking' not in report.values.get('robot in the map', 'looking')) == known


def mean_on(field, places):
    info = field.info
    cells = np.floor((places[:, :2] - [info.origin.position.x, info.origin.position.y]) / info.resolution).astype(int)
    return np.asarray(field.mean)[cells[:, 1] * info.width + cells[:, 0]]


@pytest.mark.parametrize('field', ['vector', 'strength'])
def test_a_robot_that_was_carried_and_turned_while_it_was_off_continues_its_map(session, field):
    seconds, more = SECONDS[field]
    sources = harmonic_field_at if field == 'vector' else field_at
    first = session.mapper(settings(field))
    knows_better = settings(field, **{'frames.odometry_is_fixed': True, 'node.map_name': 'told'})
    told = session.mapper(knows_better, name='told')
    robot = session.robot(first, told).drive(drive(seconds, field=sources))
    for mapper in (first, told):
        assert mapper.finish(mapper.watch('field')).header.frame_id == 'odom'
        assert mapper.process.stop() == 0

    # The robot goes on along the same eights, 3 m and 70 degrees from where its odometry begins now.
    frame = np.array([2.4, -1.8, np.deg2rad(70.0)])
    course = drive(more, field=sources).later(seconds + 60.0)
    second = session.mapper(settings(field))
    transforms = session.collect(TFMessage, '/tf', RELIABLE)
    robot.turn_to(second)
    robot.sent_readings = 0
    rebooted = after_a_reboot(course, frame)
    robot.drive(rebooted[:50])
    report = second.wait_diagnostics(in_the_map(False), 'a robot that is looked for')
    assert report.level == DiagnosticStatus.WARN and 'looking for the robot in the map' in report.message
    assert 'nothing is learnt before the robot is found' in second.do('flush')
    robot.drive(rebooted[50:])
    second.wait_diagnostics(in_the_map(True), 'a robot that was found')
    assert 'the robot was found in the map after' in second.process.log
    transform = transforms.wait(lambda message: message.transforms[0].child_frame_id == 'odom', 'where odometry is').transforms[0]
    assert transform.header.frame_id == 'map'
    off = of_planar(transform.transform) - frame
    assert np.linalg.norm(off[:2]) < 0.2 and abs(off[2]) < 0.06, off
    merged = second.finish(second.watch('field'))
    assert merged.header.frame_id == 'map'

    fixed = session.mapper(knows_better, name='told')
    robot.turn_to(fixed)
    robot.sent_readings = 0
    robot.drive(course)
    expected = fixed.finish(fixed.watch('field'))
    truth = np.linalg.norm(sources(course.poses[:, 0], course.poses[:, 1]), axis=-1)
    errors = [np.sqrt(np.mean((mean_on(of, course.poses) - truth) ** 2)) for of in (merged, expected)]
    assert errors[0] < 1.5 * errors[1], errors


def test_what_is_driven_elsewhere_is_a_map_of_its_own_and_the_map_stays(session):
    first = session.mapper(settings('vector'))
    robot = session.robot(first).drive(drive(28.0, field=harmonic_field_at))
    before = first.finish(first.watch('field'))
    assert first.process.stop() == 0

    second = session.mapper(settings('vector'))
    robot.turn_to(second)
    robot.sent_readings = 0
    elsewhere = drive(28.0, field=lambda x, y, z=0.0: harmonic_field_at(y + 7.0, 5.0 - x)).later(100.0)
    robot.drive(elsewhere)
    second.wait_diagnostics(in_the_map(False), 'a robot that is looked for')
    assert second.process.stop() == 0
    assert 'the robot was not found in the map' in second.process.log
    files = sorted(path.name for path in (session.folder / 'maps').glob('*.magmap'))
    assert len(files) == 2 and files[0].startswith('map-unplaced-'), files

    third = session.mapper(settings('vector'))
    np.testing.assert_array_equal(third.watch('field').wait().mean, before.mean)
    assert third.process.stop() == 0
    apart = session.mapper(settings('vector', **{'node.map_name': files[0].removesuffix('.magmap')}))
    report = apart.wait_diagnostics(lambda report: 'inducing points' in report.values, 'a map')
    assert report.count('inducing points') > 0

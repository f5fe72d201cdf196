"""The node among others: what it publishes, responds, reports and rejects, on the drive of a robot in a known world."""

from dataclasses import replace
import json
import math
from pathlib import Path
import re
import shutil
import signal
import subprocess
import threading
import time

from ament_index_python.packages import get_package_share_directory
from diagnostic_msgs.msg import DiagnosticStatus
from map_msgs.msg import OccupancyGridUpdate
from nav_msgs.msg import Odometry
import numpy as np
import pytest
import rclpy
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import MagneticField
from std_msgs.msg import Bool
from visualization_msgs.msg import Marker

from harness import (
    BEST_EFFORT,
    LATCHED,
    MICROTESLA,
    NANOSECONDS,
    PATIENCE,
    RELIABLE,
    START,
    VOLATILE,
    centres_of,
    deviation_from_truth,
    drive,
    executable,
    field_at,
    geometry_of,
    harmonic_field_at,
    refused_readings,
    strength_at,
    to_nanoseconds,
    to_time,
    transform,
)

# Root mean square of the difference from the truth that a map of a whole lap has at most, in microtesla.
TRUE_ENOUGH = 2.5

# How many cells of 0.1 m such a map knows well, at least.
WELL_KNOWN = 250

# How far a grid has to reach for some of it to be unknown.
WIDE = {'raster.margin': 3.0}

# Where the magnetometer sits on the robot, where it does not sit in its middle: x, y and heading, and z.
MOUNT = (0.3, -0.2, 0.7)
MOUNT_HEIGHT = 0.4


# ---- Maps ----


def test_published_maps_are_consistent_and_true(session):
    mapper = session.mapper(WIDE)
    topics = {name: mapper.watch(name) for name in ('field', 'mean', 'variance', 'cloud', 'inducing_points', 'path')}
    course = drive()
    session.robot(mapper).drive(course)
    field = mapper.finish(topics['field'])
    stamp = field.header.stamp
    is_latest = lambda message: header_of(message).stamp == stamp  # noqa: E731
    latest = {name: topic.wait(is_latest, f'the stamp {stamp}') for name, topic in topics.items()}
    assert {header_of(message).frame_id for message in latest.values()} == {'odom'}
    assert to_nanoseconds(stamp) == course.reading_stamps[-1]
    assert field.readings_used == len(course) and field.readings_rejected == field.poses_rejected == 0

    error, cells = deviation_from_truth(field)
    assert error < TRUE_ENOUGH and cells > WELL_KNOWN, f'{error:.2f} microtesla over {cells} cells'
    for layer in ('mean', 'variance'):
        grid = latest[layer]
        assert geometry_of(grid.info) == geometry_of(field.info)
        occupancies = np.asarray(grid.data)
        assert (occupancies.min(), occupancies.max()) == (-1, 100)
        assert np.array_equal(occupancies == -1, np.isnan(field.mean))

    cloud = latest['cloud']
    known = np.isfinite(field.mean)
    names = ['x', 'y', 'z', 'intensity', 'mean', 'standard_deviation']
    assert [part.name for part in cloud.fields] == names
    points = np.frombuffer(bytes(cloud.data), dtype=[(name, '<f4') for name in names])
    assert cloud.width * cloud.height == len(points) == known.sum() and cloud.point_step == points.dtype.itemsize
    x, y = centres_of(field.info)
    np.testing.assert_allclose(points['x'], x[known], atol=1e-5)
    np.testing.assert_allclose(points['y'], y[known], atol=1e-5)
    np.testing.assert_array_equal(points['mean'], np.asarray(field.mean)[known])
    np.testing.assert_array_equal(points['standard_deviation'], np.asarray(field.standard_deviation)[known])
    np.testing.assert_allclose(points['intensity'], points['mean'] / MICROTESLA, rtol=1e-6)

    (marker,) = latest['inducing_points'].markers
    assert marker.action == Marker.ADD and len(field.inducing_points) > 5
    assert [(p.x, p.y) for p in marker.points] == [(p.x, p.y) for p in field.inducing_points]

    path = np.array([[pose.pose.position.x, pose.pose.position.y] for pose in latest['path'].poses])
    lap = np.linalg.norm(np.diff(course.poses[:, :2], axis=0), axis=1).sum()
    assert np.linalg.norm(np.diff(path, axis=0), axis=1).sum() == pytest.approx(lap, rel=0.05)


def header_of(message):
    return message.markers[0].header if hasattr(message, 'markers') else message.header


def test_of_a_large_map_what_changed_is_published_and_adds_up_to_the_whole(session):
    # Every map is a large one.
    mapper = session.mapper({'node.whole_map_cells': 0})
    whole = mapper.watch('mean')
    # All of them: each is a part of the map.
    updates = session.collect(OccupancyGridUpdate, f'{mapper.name}/mean_updates', RELIABLE)
    field = mapper.watch('field')
    robot = session.robot(mapper)
    course = drive()

    def is_newest(message):
        return message.header.stamp == field.last.header.stamp

    robot.drive(course)
    mapper.finish(field)
    # The same lap again changes the map, but not its extent. While the range of values still changes, the map is published whole, as
    # it is from time to time in any case.
    for lap in range(1, 6):
        robot.drive(course.later(20.0 * lap))
        mapper.finish(field)
        session.wait(lambda: any(map(is_newest, updates.messages + whole.messages)), 'the newest map, whole or by its changes')
        stamps = [{to_nanoseconds(message.header.stamp) for message in of.messages} for of in (updates, whole)]
        if stamps[0] - stamps[1]:
            break
    else:
        pytest.fail('no map was published by its changes alone')
    received = sorted(whole.messages + updates.messages, key=lambda message: to_nanoseconds(message.header.stamp))
    for message in received:
        if message in whole.messages:
            cells = np.array(message.data, np.int8).reshape(message.info.height, message.info.width)
        else:
            changed = np.array(message.data, np.int8).reshape(message.height, message.width)
            cells[message.y : message.y + message.height, message.x : message.x + message.width] = changed
    # A new subscriber may get the last map that was published whole before it gets the newest one.
    newest = mapper.watch('mean').wait(is_newest, 'the newest map, whole, for a new subscriber')
    assert (cells.reshape(-1) == np.array(newest.data, np.int8)).all()


def test_late_joiners_get_the_map_without_another_reading(session):
    mapper = session.mapper()
    course = drive()
    session.robot(mapper).drive(course)
    mapper.do('flush')
    for quality, which in [(LATCHED, 'transient local'), (VOLATILE, 'volatile'), (VOLATILE, 'the second volatile')]:
        for name in ('mean', 'variance', 'field', 'cloud', 'inducing_points', 'path'):
            joined = mapper.watch(name, quality)
            message = joined.wait(what=f'the map for a late subscriber, {which}')
            assert to_nanoseconds(header_of(message).stamp) == course.reading_stamps[-1]


def test_the_query_service_agrees_with_the_map(session):
    mapper = session.mapper(WIDE)
    assert not mapper.query([(0, 0)]).success
    field = mapper.watch('field')
    session.robot(mapper).drive(drive())
    field = mapper.finish(field)
    x, y = centres_of(field.info)
    answer = mapper.query(zip(x, y))
    assert answer.success, answer.message
    assert answer.header == field.header
    known = np.asarray(answer.known)
    assert np.array_equal(known, np.isfinite(field.mean)) and 0.1 < known.mean() < 0.95
    np.testing.assert_allclose(np.asarray(answer.mean)[known], np.asarray(field.mean)[known], rtol=1e-6)
    deviations = np.asarray(field.standard_deviation)[known]
    np.testing.assert_allclose(np.asarray(answer.standard_deviation)[known], deviations, rtol=1e-5)
    assert np.isnan(np.asarray(answer.mean)[~known]).all(), 'a mean where the map knows nothing'
    far = mapper.query([(1000.0, 0.0), (math.nan, 0.0), (0.0, math.inf), (0.0, 0.0)])
    assert far.success and list(far.known) == [False, False, False, True]
    assert mapper.query([]).success


# What maps the three axes, and the root mean square of their difference from the truth on a path that is crossed often.
AXES = {'model.field': 'vector'}
HARD_IRON = (4.0, -3.0, 0.0)
AXES_TRUE_ENOUGH = 2.5

# Red, green and blue of the colour map viridis at its start, thirds and end.
VIRIDIS = np.array([[0x44, 0x01, 0x54], [0x31, 0x68, 0x8E], [0x35, 0xB7, 0x79], [0xFD, 0xE7, 0x25]]) / 255.0


def test_three_axes_are_published_and_answered_at_any_height(session):
    mapper = session.mapper({**WIDE, **AXES})
    topics = {name: mapper.watch(name) for name in ('field', 'cloud', 'vectors', 'bias')}
    course = drive(28.0, field=harmonic_field_at)
    course = replace(course, readings=course.readings + MICROTESLA * np.array(HARD_IRON))
    session.robot(mapper).drive(course)
    field = mapper.finish(topics['field'])
    is_latest = lambda message: header_of(message).stamp == field.header.stamp  # noqa: E731
    latest = {name: topic.wait(is_latest, 'the last map') for name, topic in topics.items()}

    known = np.isfinite(field.mean)
    axes, covariance = np.reshape(field.axes, (3, -1)), np.reshape(field.axes_covariance, (6, -1))
    for values in (*axes, *covariance):
        assert np.array_equal(np.isfinite(values), known)
    np.testing.assert_array_less(0, covariance[[0, 3, 5]][:, known])
    x, y = centres_of(field.info)
    well = known & (np.asarray(field.standard_deviation) < 2 * MICROTESLA)
    errors = (axes.T - harmonic_field_at(x, y))[well] / MICROTESLA
    assert np.sqrt((errors**2).mean()) < AXES_TRUE_ENOUGH and well.sum() > 100, f'{np.sqrt((errors**2).mean())}, {well.sum()}'

    cloud = latest['cloud']
    names = ['x', 'y', 'z', 'intensity', 'mean', 'standard_deviation']
    names += [f'{what}_{axis}' for what in ('mean', 'standard_deviation') for axis in 'xyz']
    assert [part.name for part in cloud.fields] == names
    points = np.frombuffer(bytes(cloud.data), dtype=[(name, '<f4') for name in names])
    assert len(points) == known.sum() and cloud.point_step == points.dtype.itemsize
    for index, axis in enumerate('xyz'):
        np.testing.assert_array_equal(points[f'mean_{axis}'], axes[index][known])
        deviation = np.sqrt(covariance[(0, 3, 5)[index]][known])
        np.testing.assert_allclose(points[f'standard_deviation_{axis}'], deviation, rtol=1e-5)

    for message in topics['vectors'].messages:
        assert_replaces_all_arrows(message)
    arrows = latest['vectors'].markers[1:]
    ends = np.array([[[point.x, point.y, point.z] for point in arrow.points] for arrow in arrows])
    tails, tips = ends[:, 0], ends[:, 1]
    distances = np.hypot(x - tails[:, :1], y - tails[:, 1:2])
    cells = distances.argmin(axis=1)
    assert known[cells].all() and 20 < len(set(cells)) == len(cells) <= 2000
    assert distances.min(axis=1).max() < 1e-5
    # All of an arrow is above the map, which would veil what is under it.
    np.testing.assert_allclose(ends[:, :, 2].min(axis=1), 0.08, atol=1e-9)
    # The longest arrow is as long as they are apart: the first of 0.1, 0.2, 0.4 ... m that is 25 cm or more.
    spacing = 0.4
    fields = axes[:, cells].T
    strengths = np.linalg.norm(fields, axis=1)
    np.testing.assert_allclose(tips - tails, spacing * fields / strengths.max(), atol=1e-5)
    widths = np.array([[arrow.scale.x, arrow.scale.y] for arrow in arrows])
    np.testing.assert_allclose(widths, np.tile([0.05 * spacing, 0.12 * spacing], (len(arrows), 1)))
    shares = np.clip((strengths - field.mean_low) / (field.mean_high - field.mean_low), 0.0, 1.0)
    for channel, thirds in zip('rgb', VIRIDIS.T):
        found = [getattr(arrow.color, channel) for arrow in arrows]
        # Between the thirds it is not straight.
        np.testing.assert_allclose(found, np.interp(shares, np.linspace(0.0, 1.0, len(thirds)), thirds), atol=0.1)

    # The vertical part of the hard iron of a robot in the plane remains unknown.
    bias = latest['bias']
    assert bias.header.frame_id == 'base_link'
    found = np.array([bias.magnetic_field.x, bias.magnetic_field.y]) / MICROTESLA
    deviations = np.sqrt(np.reshape(bias.magnetic_field_covariance, (3, 3)).diagonal()) / MICROTESLA
    assert (np.abs(found - HARD_IRON[:2]) < 1.0).all() and (deviations[:2] < 1.0).all() and deviations[2] > 1.0
    report = mapper.fresh_diagnostics()
    assert 'doubt' not in report.values and 'microtesla' in report.values['hard iron: standard deviation']
    # The field decays upwards: its sources are below.
    assert 0.6 < field.share_below <= 1.0
    assert float(report.values['share from below']) == pytest.approx(field.share_below, abs=1e-3)
    iron = [float(part) for part in report.values['hard iron'].removesuffix(' microtesla').split(',')]
    np.testing.assert_allclose(iron[:2], found, atol=1e-3)

    answer = mapper.query(zip(x, y))
    assert np.array_equal(answer.known, known) and len(answer.field_covariance) == 9 * len(x)
    vectors = np.array([[vector.x, vector.y, vector.z] for vector in answer.field])
    np.testing.assert_allclose(vectors[known], axes.T[known], rtol=1e-5, atol=1e-10)
    np.testing.assert_allclose(np.asarray(answer.mean)[known], np.asarray(field.mean)[known], rtol=1e-5)
    path = course.poses[::50, :2]
    above = mapper.query([(*place, 0.3) for place in path])
    vectors = np.array([[vector.x, vector.y, vector.z] for vector in above.field])
    errors = (vectors - harmonic_field_at(*path.T, 0.3)) / MICROTESLA
    assert all(above.known) and np.sqrt((errors**2).mean()) < AXES_TRUE_ENOUGH, errors

    mapper.do('reset')
    assert_replaces_all_arrows(topics['vectors'].wait(lambda message: len(message.markers) == 1, 'no arrows'))


def assert_replaces_all_arrows(message):
    """The arrows are opaque and numbered, and those of an earlier message are deleted first, by a marker with a number of its own."""
    first, *arrows = message.markers
    assert first.action == Marker.DELETEALL
    assert [marker.id for marker in message.markers] == list(range(len(message.markers)))
    for arrow in arrows:
        assert (arrow.type, arrow.action, arrow.ns, arrow.header) == (Marker.ARROW, Marker.ADD, first.ns, first.header)
        assert arrow.pose.orientation.w == 1.0 and arrow.color.a == 1.0


def test_a_map_of_strengths_has_no_axes_and_says_so(session):
    mapper = session.mapper({'model.field': 'strength'})
    field = mapper.watch('field')
    session.robot(mapper).drive(drive())
    field = mapper.finish(field)
    assert not field.axes and not field.axes_covariance and math.isnan(field.share_below)
    assert 'share from below' not in mapper.fresh_diagnostics().values
    answer = mapper.query([(0.0, 0.0), (0.0, 0.0, 5.0)])
    assert list(answer.known) == [True, True] and answer.mean[0] == answer.mean[1]
    assert not answer.field and not answer.field_covariance
    for topic in ('vectors', 'bias'):
        assert not session.ros.get_publishers_info_by_topic(f'{mapper.name}/{topic}')


def test_a_sensor_that_is_turned_without_a_transform_is_reported_with_the_cause(session):
    mapper = session.mapper(AXES)
    session.robot(mapper).drive(drive(42.0, mount=(0.0, 0.0, math.pi / 2), field=harmonic_field_at))
    mapper.do('flush')
    # The message is soon another one: that there are no more readings.
    doubtful = mapper.wait_diagnostics(lambda report: 'doubt' in report.values, 'a contradiction')
    assert doubtful.level == DiagnosticStatus.WARN
    doubt = doubtful.values['doubt']
    assert re.search(r'contradict the physics .* turned by -?(80|85|90) or -?(90|95|100) degrees about the vertical', doubt), doubt
    mapper.wait_log('contradict the physics')


def test_reset_clears_the_map_and_mapping_continues(session):
    mapper = session.mapper()
    field, mean, variance = mapper.watch('field'), mapper.watch('mean'), mapper.watch('variance')
    markers, path = mapper.watch('inducing_points'), mapper.watch('path')
    robot = session.robot(mapper)
    lap = drive(28.0)
    robot.drive(lap[:700])
    before = mapper.finish(field)
    mapper.do('reset')
    empty = field.wait(lambda message: np.isnan(message.mean).all(), 'a map that knows nothing')
    assert empty.update == empty.observations == 0 < before.update
    assert geometry_of(empty.info) == geometry_of(before.info) and not empty.inducing_points
    for grid in (mean, variance):
        grid.wait(lambda message: set(message.data) == {-1}, 'a grid of -1')
        assert geometry_of(grid.last.info) == geometry_of(before.info)
    markers.wait(lambda message: message.markers[0].action == Marker.DELETE, 'no inducing points')
    path.wait(lambda message: not message.poses, 'no path')
    assert not mapper.query([(0, 0)]).success

    robot.drive(lap[700:])
    after = mapper.finish(field)
    error, cells = deviation_from_truth(after)
    assert error < TRUE_ENOUGH and cells > WELL_KNOWN, f'{error:.2f} microtesla over {cells} cells'
    assert mapper.query([(0, 0)]).success
    path.wait(lambda message: message.poses, 'a path')


def test_pause_ignores_readings_and_resume_uses_them_again(session):
    mapper = session.mapper()
    field = mapper.watch('field')
    robot = session.robot(mapper)
    course = drive()
    robot.drive(course[:300])
    assert 'paused' in mapper.do('pause')
    paused = mapper.wait_diagnostics(lambda report: report.message == 'paused', '"paused"')
    assert paused.values['paused'] == 'true'
    before = field.wait(lambda message: message.readings_used == 300, 'a map of 300 readings')
    robot.drive(course[300:500])
    ignored = mapper.wait_diagnostics(lambda report: report.count('readings ignored while paused') == 200, '200 ignored')
    assert ignored.count('readings used') == 300 and ignored.refused() == {}
    mapper.do('flush')
    assert field.last.observations == before.observations
    mapper.do('resume')
    robot.drive(course[500:])
    assert mapper.finish(field).readings_used == 500
    assert mapper.fresh_diagnostics().values['paused'] == 'false'


# ---- Saved maps ----


def earlier_map(message):
    """The name of the earlier map in the answer of a service."""
    return Path(re.search(r'the previous map is kept as (\S+)', message).group(1)).stem


def test_a_map_reports_its_numbers_of_observations_and_readings(session):
    mapper = session.mapper()
    field = mapper.watch('field')
    session.robot(mapper).drive(drive())
    saved = mapper.finish(field)
    counts = (saved.observations, saved.readings_used)
    mapper.do('save')
    earlier = earlier_map(mapper.do('reset'))
    empty = field.wait(lambda message: np.isnan(message.mean).all(), 'a map that knows nothing')
    found = {'reset': (empty.observations, empty.readings_used)}
    assert mapper.set_parameter('node.map_name', earlier)[0]
    mapper.do('load')
    loaded = field.wait(lambda message: np.isfinite(message.mean).any(), 'the loaded map')
    found['loaded'] = (loaded.observations, loaded.readings_used)
    assert mapper.process.stop() == 0
    field = session.mapper({'node.map_name': earlier}).watch('field').wait(what='the loaded map')
    found['loaded at the start'] = (field.observations, field.readings_used)
    assert found == {'reset': (0, 0), 'loaded': counts, 'loaded at the start': counts}


def test_load_goes_back_to_the_map_as_it_was_saved_and_keeps_what_came_after(session):
    mapper = session.mapper()
    field = mapper.watch('field')
    course = drive()
    robot = session.robot(mapper).drive(course[:400])
    saved = mapper.finish(field)
    mapper.do('save')
    robot.drive(course[400:])
    whole = mapper.finish(field)
    assert (saved.readings_used, whole.readings_used) == (400, len(course))
    earlier = earlier_map(mapper.do('load'))
    loaded = field.wait(lambda message: message.readings_used == 400, 'the map as it was saved')
    np.testing.assert_array_equal(loaded.mean, saved.mean)
    assert mapper.process.stop() == 0
    for name, expected in [('map', saved), (earlier, whole)]:
        again = session.mapper({'node.map_name': name})
        found = again.watch('field').wait(what=f'the map {name}')
        assert found.readings_used == expected.readings_used
        np.testing.assert_array_equal(found.mean, expected.mean)
        assert again.process.stop() == 0


def test_a_saved_map_is_loaded_and_continued(session):
    # On the second day the robot drives 3 m from where it was on the first.
    settings = {'node.map_name': 'hall', 'frames.odometry_is_fixed': True}
    first = session.mapper(settings)
    field, mean, variance = first.watch('field'), first.watch('mean'), first.watch('variance')
    assert 'no map' in first.ask('save')[1]
    session.robot(first).drive(drive())
    saved = first.finish(field)
    grids = [grid.wait(lambda message: message.header == saved.header, 'the last map') for grid in (mean, variance)]
    path = session.folder / 'maps' / 'hall.magmap'
    assert str(path) in first.do('save')
    assert path.exists()
    assert first.process.stop() == 0

    # A copy is a map like any other.
    shutil.copy(path, path.with_name('copy.magmap'))
    second = session.mapper({**settings, 'node.map_name': 'copy'})
    field, mean, variance = second.watch('field'), second.watch('mean'), second.watch('variance')
    loaded = field.wait(what='the loaded map')
    assert loaded.header.frame_id == saved.header.frame_id and geometry_of(loaded.info) == geometry_of(saved.info)
    np.testing.assert_array_equal(loaded.mean, saved.mean)
    np.testing.assert_array_equal(loaded.standard_deviation, saved.standard_deviation)
    for grid, expected in zip((mean, variance), grids):
        assert grid.wait(what='the loaded map').data == expected.data
    session.robot(second).drive(drive(centre=3.0).later(60.0))
    grown = second.finish(field)
    places = [(0.0, 0.0), (3.0, 0.0)]
    assert grown.info.width > saved.info.width + 20 and list(second.query(places).known) == [True, True]
    error, cells = deviation_from_truth(grown)
    assert error < TRUE_ENOUGH and cells > 1.5 * deviation_from_truth(saved)[1], f'{error:.2f} microtesla over {cells} cells'

    assert second.process.stop() == 0
    third = session.mapper({**settings, 'node.load_at_start': False})
    field = third.watch('field')
    assert str(path) in third.do('load')
    np.testing.assert_array_equal(field.wait(what='the loaded map').mean, saved.mean)
    assert not third.set_parameter('model.kernel', 'matern32')[0], 'another model while it runs'

    assert third.process.stop() == 0
    differs = 'model.kernel is "matern32", but the map was made with "matern52"'
    fourth = session.mapper({**settings, 'model.kernel': 'matern32', 'node.load_at_start': False})
    success, message = fourth.ask('load')
    assert not success and differs in message, message

    assert fourth.process.stop() == 0
    fifth = session.mapper({**settings, 'model.kernel': 'matern32'})
    assert fifth.process.wait() == 1
    assert f'{path} cannot be continued' in fifth.process.log and differs in fifth.process.log


def test_a_map_that_cannot_be_loaded_is_reported_with_its_path(session):
    mapper = session.mapper({'node.map_name': 'hall'})
    field = mapper.watch('field')
    session.robot(mapper).drive(drive(5.0))
    before = mapper.finish(field)
    # There is nothing to go back to before the map is saved.
    success, message = mapper.ask('load')
    assert not success and str(session.folder / 'maps' / 'hall.magmap') in message and 'save the map first' in message, message
    assert mapper.set_parameter('node.map_name', 'other')[0]
    path = session.folder / 'maps' / 'other.magmap'
    success, message = mapper.ask('load')
    assert not success and str(path) in message, message
    path.write_bytes(b'PK\x03\x04 this is no map')
    success, message = mapper.ask('load')
    assert not success and str(path) in message, message
    assert path.read_bytes() == b'PK\x03\x04 this is no map'
    assert mapper.query([(0, 0)]).success and field.last.observations == before.observations

    # A file that is not a map is kept when the map is saved in its place.
    earlier = earlier_map(mapper.do('save'))
    assert mapper.process.stop() == 0
    assert path.with_name(f'{earlier}.magmap').read_bytes() == b'PK\x03\x04 this is no map'
    again = session.mapper({'node.map_name': 'other'}).watch('field').wait(what='the saved map')
    assert again.observations == before.observations


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_a_drive_ends_the_node_in_good_order(session, number):
    mapper = session.mapper()
    robot = session.robot(mapper)
    has_ended = threading.Event()
    driver = threading.Thread(target=robot.send, args=(drive(120.0), 500, has_ended.is_set))
    driver.start()
    try:
        mapper.wait_diagnostics(lambda report: report.count('readings used') > 200, 'a drive')
        assert mapper.process.stop(number) == 0, mapper.process.log
    finally:
        has_ended.set()
        driver.join()
    used, received = map(int, re.search(r'mapped (\d+) of (\d+) readings', mapper.process.log).groups())
    # The last reading may have waited for its pose. The others are in the map: the open batch has been closed.
    assert 200 < received - 1 <= used


def test_a_signal_stops_a_running_optimisation(session):
    mapper, robot, _ = learning_for_long(session)
    # Reports do not wait for the batch.
    assert mapper.fresh_diagnostics().count('updates') == 0
    assert mapper.process.stop() == 0
    assert 'mapped 3000 of 3000 readings' in mapper.process.log and 'in 1 updates' in mapper.process.log


def test_a_node_that_is_busy_learning_does_not_blame_the_odometry(session):
    mapper, robot, rest = learning_for_long(session)
    # Long enough for two health checks.
    robot.send(rest, rate=50)
    busy = mapper.fresh_diagnostics()
    assert busy.count('updates') == 0 and busy.count('backlog') > 0
    assert 'odometry is late' not in mapper.process.log, mapper.process.log
    assert mapper.process.stop() == 0


def learning_for_long(session):
    """A node that learns from a batch of 3000 readings, its robot, and the rest of the drive."""
    # Enough inducing points and evaluations to take much longer than anybody would wait.
    mapper = session.mapper({
        'averaging.spacing': 0.0, 'batch.max_observations': 3000, 'batch.max_path': 0.0, 'batch.max_duration': 0.0,
        'model.initial.lengthscale': 0.1, 'model.initial.noise': 0.01, 'selection.ceiling': 'upper', 'selection.delta': 0.001,
        'selection.max_inducing_points': 1000, 'learning.prior': False, 'learning.max_evaluations': 100000,
    })  # fmt: skip
    course = drive(63.0)
    course.readings += np.random.default_rng(1).normal(0.0, 5.0 * MICROTESLA, course.readings.shape)
    robot = session.robot(mapper).drive(course[:2990])
    robot.send(course[2990:3000])
    report = mapper.wait_diagnostics(lambda report: report.count('readings used') == 3000, 'a full batch')
    assert report.count('updates') == 0
    return mapper, robot, course[3000:]


# ---- Parameters ----


@pytest.mark.parametrize(
    'parameters, expected',
    [
        ({'selection.delta': 2.0}, ['selection.delta', 'less than 1', 'found 2']),
        ({'selection.delta': 'wide'}, ['selection.delta', 'wide']),
        ({'selection.dela': 0.1}, ['unknown key selection.dela', 'did you mean selection.delta?']),
        ({'sensor.position': [0.0, 1.0]}, ['sensor.position', '3']),
        ({'frames.pose_source': 'oracle'}, ['frames.pose_source', 'oracle', 'transforms']),
        ({'config': '/nowhere/robot.toml'}, ['cannot read', '/nowhere/robot.toml']),
        ({'config': 'broken.toml'}, ['broken.toml', 'selection.dela']),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else '',
)
def test_wrong_parameters_are_rejected_at_the_start(session, tmp_path, parameters, expected):
    if parameters.get('config') == 'broken.toml':
        parameters = {'config': tmp_path / 'broken.toml'}
        parameters['config'].write_text('selection.dela = 0.1\n')
    process = session.mapper(parameters).process
    assert process.wait() == 2, process.log
    missing = [words for words in expected if words not in process.log]
    assert not missing, f'expected {missing} in\n{process.log}'


def test_help_explains_usage(session):
    process = session.run('help', [executable('magmap_node'), '--help'])
    assert process.wait() == 0
    for words in ('Usage: ros2 run magmap magmap_node', 'imu/mag', '~/flush', 'ros2 param describe'):
        assert words in process.log


def test_transforms_as_the_source_of_poses_need_a_frame_for_the_map(session):
    process = session.mapper({'frames.pose_source': 'transforms'}).process
    assert process.wait() == 2 and 'frames.map: expected the name of a frame' in process.log, process.log


def test_every_setting_of_a_mapper_is_a_parameter_with_a_description(session):
    mapper = session.mapper()
    pose = ('set_initial_pose', 'initial_pose.x', 'initial_pose.y', 'initial_pose.z', 'initial_pose.yaw')
    alone = ('map', *pose, 'load_last_pose', 'save_pose_rate', 'tf_broadcast', 'transform_tolerance', 'update_min_d', 'update_min_a')
    others = {'slam.trajectory', 'evaluation.cut', *(f'localization.{name}' for name in alone)}
    settings = {name: default for name, default in default_settings().items() if name not in others}
    expected = {'config', 'use_sim_time', *settings}
    names = mapper.list_parameters()
    assert len(names) == len(set(names))
    # Parameters of the middleware are not settings.
    assert {name for name in names if not name.startswith('qos_overrides')} == expected
    descriptors = {descriptor.name: descriptor for descriptor in mapper.describe_parameters(sorted(expected))}
    assert [name for name in sorted(expected) if not descriptors[name].description.strip()] == []
    assert 'smaller' in descriptors['selection.delta'].description
    wrong = {
        name: mapper.parameter(name)
        for name, default in settings.items()
        if name not in mapper.FOR_TESTS and name != 'node.map_folder' and mapper.parameter(name) != default
    }
    assert wrong == {}


def default_settings():
    """Every key of the shipped configuration, with its value."""
    settings, section = {}, ''
    # Of TOML it uses no more than sections and values that JSON has as well.
    for line in (Path(get_package_share_directory('magmap')) / 'config' / 'default.toml').read_text().splitlines():
        if line.startswith('['):
            section = line.strip('[]') + '.'
        elif line and not line.startswith('#'):
            key, value = line.split(' = ', 1)
            settings[section + key] = json.loads(value)
    return settings


def test_changeable_parameters_change_while_the_node_runs_and_others_are_rejected(session):
    mapper = session.mapper()
    field = mapper.watch('field')
    robot = session.robot(mapper)
    lap = drive(28.0)
    robot.drive(lap[:700])
    coarse = mapper.finish(field)
    assert mapper.set_parameter('selection.delta', 0.02) == (True, '')
    assert mapper.parameter('selection.delta') == 0.02
    robot.drive(lap[700:])
    fine = mapper.finish(field)
    assert len(fine.inducing_points) > len(coarse.inducing_points), 'a smaller delta, a more exact map'
    assert mapper.set_parameter('raster.resolution', 0.2)[0]
    field.wait(lambda message: abs(message.info.resolution - 0.2) < 1e-6, 'a map in cells of 0.2 m')

    for name, value, expected in [
        ('model.mean', 40.0, 'set it at startup'),
        ('mapping.inbox', 100, 'set it at startup'),
        ('selection.delta', 2.0, 'less than 1'),
        ('selection.delta', 'small', 'selection.delta'),
        ('selection.nothing', 1.0, 'selection.nothing'),
        ('nothing', 1.0, 'nothing'),
    ]:
        success, reason = mapper.set_parameter(name, value)
        assert not success and expected in reason, f'{name} = {value}: {success}, "{reason}"'
    assert mapper.parameter('model.mean') == 0.0 and mapper.parameter('selection.delta') == 0.02
    assert mapper.list_parameters() == session.mapper(namespace='/other').list_parameters(), 'no parameter came to it'


def test_parameters_win_over_the_file_and_the_file_over_the_defaults(session, tmp_path):
    path = tmp_path / 'robot.toml'
    path.write_text('selection.delta = 0.1\n[raster]\nmargin = 3.0\n')
    mapper = session.mapper({'config': path, 'raster.margin': 2.0})
    found = [mapper.parameter(name) for name in ('config', 'selection.delta', 'raster.margin', 'batch.max_path')]
    assert found == [str(path), 0.1, 2.0, 5.0]


# ---- Names ----


def test_names_can_be_remapped_and_put_into_a_namespace(session):
    remappings = {'imu/mag': '/sensors/mag', 'odom': 'wheels/odom'}
    mapper = session.mapper(name='ground', namespace='/robot', remappings=remappings)
    field = mapper.watch('field')
    assert field.topic == '/robot/ground/field'
    course = drive(7.0)
    session.robot(mapper, magnetometer='/sensors/mag', odometry='/robot/wheels/odom').drive(course)
    assert mapper.finish(field).readings_used == len(course)
    assert 'mapping /sensors/mag along /robot/wheels/odom' in mapper.process.log


def test_two_nodes_in_different_namespaces_make_maps_of_their_own(session):
    def stronger(x, y):
        return 1.5 * field_at(x, y)

    mappers = [session.mapper(namespace=f'/robot{number}') for number in (1, 2)]
    fields = [mapper.watch('field') for mapper in mappers]
    robots = [
        session.robot(mapper, magnetometer=f'/robot{number}/imu/mag', odometry=f'/robot{number}/odom')
        for number, mapper in enumerate(mappers, start=1)
    ]
    courses = [drive(), drive(field=stronger)]
    for first in range(0, 700, 100):
        for robot, course in zip(robots, courses):
            robot.drive(course[first : first + 100])
    maps = [mapper.finish(field) for mapper, field in zip(mappers, fields)]
    assert deviation_from_truth(maps[0])[0] < TRUE_ENOUGH
    assert deviation_from_truth(maps[1], lambda x, y: 1.5 * strength_at(x, y))[0] < 1.5 * TRUE_ENOUGH


def test_the_launch_file_starts_a_node_as_its_arguments_say(session, tmp_path):
    config = tmp_path / 'robot.toml'
    config.write_text('selection.delta = 0.1\nnode.diagnostics_rate = 20.0\nmapping.max_merged = 1\n')
    arguments = [
        f'config:={config}', 'namespace:=robot', 'magnetometer_topic:=/sensors/mag', 'odometry_topic:=wheels/odom',
        'reliability:=reliable', f'map_folder:={tmp_path / "maps"}',
    ]
    launch = session.run('launch', ['ros2', 'launch', 'magmap', 'mapping.launch.py', *arguments])
    mapper = session.launched('/robot/magmap', launch)
    field = mapper.watch('field')
    course = drive(7.0)
    session.robot(mapper, magnetometer='/sensors/mag', odometry='/robot/wheels/odom').drive(course)
    assert mapper.finish(field).readings_used == len(course)
    assert mapper.parameter('selection.delta') == 0.1
    assert launch.stop() == 0, launch.log
    assert 'mapped 350 of 350 readings' in launch.log


# ---- What goes wrong on robots ----


def test_a_best_effort_sensor_is_heard_by_default(session):
    mapper = session.mapper({'node.reliability': 'best_effort'})
    field = mapper.watch('field')
    course = drive(4.0)
    session.robot(mapper, quality=BEST_EFFORT).drive(course)
    assert mapper.finish(field).readings_used == len(course)


def test_two_publishers_on_a_topic_are_named_and_mapping_continues(session):
    mapper = session.mapper()
    course = drive(6.0)
    robot = session.robot(mapper).drive(course[:100])
    assert mapper.fresh_diagnostics().level == DiagnosticStatus.OK
    intruder = rclpy.create_node('intruder', namespace='/other', context=session.context, start_parameter_services=False)
    publisher = intruder.create_publisher(Odometry, '/odom', RELIABLE)
    both = '/odom has 2 publishers, /magmap_tests and /other/intruder: their messages are mixed'
    report = mapper.wait_diagnostics(lambda report: both in report.message, 'both publishers')
    assert report.level == DiagnosticStatus.WARN and both in report.values['several publishers']
    robot.drive(course[100:])
    assert mapper.fresh_diagnostics().count('readings used') > 250
    # The log says it once, not in every report.
    assert len(re.findall(rf'\[WARN\].*{both}', mapper.process.log)) == 1, mapper.process.log
    intruder.destroy_publisher(publisher)
    intruder.destroy_node()
    mapper.wait_log('no subscribed topic has several publishers any more')
    assert mapper.fresh_diagnostics().level == DiagnosticStatus.OK


def test_a_silent_topic_is_named(session):
    mapper = session.mapper()
    mapper.wait_log('no readings yet: nothing publishes /imu/mag')
    silent = mapper.wait_diagnostics(lambda report: 'nothing publishes /imu/mag' in report.message, 'the topic')
    assert silent.level == DiagnosticStatus.WARN
    best_effort = session.publisher(MagneticField, '/imu/mag', BEST_EFFORT)
    best_effort.publish(MagneticField())
    mapper.wait_log('A reliable subscription (node.reliability) receives nothing from a best-effort publisher')

    reliable = session.publisher(MagneticField, '/imu/mag')
    stamps = iter(range(START, 2 * START, NANOSECONDS // 50))

    def lacks_odometry():
        reading = MagneticField()
        reading.header.stamp, reading.header.frame_id = to_time(next(stamps)), 'base_link'
        reliable.publish(reading)
        return 'nothing publishes /odom' in mapper.diagnostics.message

    session.wait(lacks_odometry, 'a word about /odom', seen=lambda: mapper.diagnostics.message)


def test_swapped_topics_are_recognized_by_their_types(session):
    publishers = [session.publisher(MagneticField, '/imu/mag'), session.publisher(Odometry, '/odom')]
    mapper = session.mapper(remappings={'imu/mag': '/odom', 'odom': '/imu/mag'})
    words = '/odom has the type nav_msgs/msg/Odometry, expected sensor_msgs/msg/MagneticField'
    mapper.wait_log(f'no readings yet: {words}. Are magnetometer_topic and odometry_topic swapped?')
    mapper.wait_diagnostics(lambda report: words in report.message, 'the types')
    assert len(publishers) == 2 and 'Is it sending?' not in mapper.process.log


def test_a_misspelt_topic_comes_with_a_command_that_lists_others(session):
    publisher = session.publisher(MagneticField, '/imu/mag')
    mapper = session.mapper(remappings={'imu/mag': '/imu/mga'})
    mapper.wait_log('no readings yet: nothing publishes /imu/mga')
    command = ['ros2', 'topic', 'find', 'sensor_msgs/msg/MagneticField']
    mapper.wait_log(f'`{" ".join(command)}` lists the topics of that type')
    found = subprocess.run([*command, '--no-daemon', '--spin-time', '2'], capture_output=True, text=True, check=True)
    assert publisher.topic_name in found.stdout.split()


def test_a_wrong_unit_is_recognized(session):
    mapper = session.mapper()
    course = drive(4.0)
    # In gauss.
    course.readings *= 1e4
    session.robot(mapper).drive(course)
    mapper.wait_log('looks like the wrong unit')
    report = mapper.wait_diagnostics(lambda report: 'looks like the wrong unit' in report.message, 'the wrong unit')
    assert 'gauss' in report.message and report.level == DiagnosticStatus.WARN
    assert report.refused() == {'field_too_strong': len(course)} and report.count('readings used') == 0


def test_readings_wait_for_a_late_transform(session):
    mapper = session.mapper()
    field = mapper.watch('field')
    robot = session.robot(mapper, sensor='imu')
    course = drive(8.0, mount=MOUNT)
    robot.drive(course[:300])
    mapper.wait_log('frame "imu" has no transform to "base_link"')
    held = mapper.wait_diagnostics(lambda report: 'frame "imu" has no transform' in report.message, 'the frame')
    assert held.refused() == {} and held.count('waiting for a transform') == 300
    session.broadcast_fixed(transform('base_link', 'imu', MOUNT, z=MOUNT_HEIGHT))
    robot.drive(course[300:])
    # The transform comes on a topic of its own, perhaps after all readings.
    mapper.wait_diagnostics(lambda report: report.count('waiting for a transform') == 0, 'the transform')
    assert mapper.finish(field).readings_used == len(course)
    assert mapper.fresh_diagnostics().refused() == {}


def test_axes_that_waited_too_long_for_a_transform_are_rejected(session):
    mapper = session.mapper({**AXES, 'frames.patience': 2.0})
    robot = session.robot(mapper, sensor='imu')
    robot.drive(drive(8.0))
    report = mapper.fresh_diagnostics()
    waiting = report.count('waiting for a transform')
    assert report.refused() == {'reading_without_transform': 400 - waiting} and 95 <= waiting <= 105


def test_a_map_frame_without_a_transform_is_named(session):
    mapper = session.mapper({'frames.map': 'map'})
    session.robot(mapper).drive(drive(4.0))
    mapper.wait_log('frame "odom" has no transform to "map": start SLAM or localization')
    # The mount of the sensor is not what is missing.
    assert 'override_transforms' not in mapper.process.log
    assert mapper.fresh_diagnostics().count('readings used') == 0


def test_what_arrives_too_fast_is_lost_counted_and_reported(session):
    # What arrives while a batch is being learnt, beyond what the inbox holds, is lost.
    slow = {'mapping.inbox': 20, 'averaging.spacing': 0.0, 'batch.max_observations': 300, 'learning.max_evaluations': 1000}
    mapper = session.mapper(slow)
    field = mapper.watch('field')
    course = drive()
    robot = session.robot(mapper).drive(course)
    # The last readings may wait for a pose that was lost.
    robot.send_pose(int(course.pose_stamps[-1]) + NANOSECONDS // 50, course.poses[-1])
    mapper.wait_log('measurements were lost: they arrive faster than they can be mapped')
    final = mapper.finish(field)
    report = mapper.fresh_diagnostics()
    lost, refused = report.count('readings lost'), refused_readings(report.refused())
    assert lost > 0 and final.readings_lost == lost
    assert report.count('readings used') == len(course) - lost - refused


def test_a_map_that_is_too_large_is_reported_once_per_update(session):
    mapper = session.mapper()
    mapper.watch('mean')
    course = drive()
    course.poses[350:, 0] += 1e5
    session.robot(mapper).drive(course)
    mapper.do('flush')
    mapper.wait_log('raise raster.max_cells')
    before = mapper.process.log.count('raise raster.max_cells')
    # Two seconds of reports.
    number = mapper.diagnostics.number
    mapper.wait_diagnostics(lambda report: report.number > number + 40, 'reports')
    assert mapper.process.log.count('raise raster.max_cells') - before <= 4
    # Nothing else depends on the raster.
    assert mapper.query([(0.0, 0.0), (1e5, 0.0)]).known == [True, True]


def test_stamps_that_never_overlap_are_reported_with_their_distance(session):
    mapper = session.mapper()
    robot = session.robot(mapper)
    course = drive(4.0)
    course.reading_stamps = course.reading_stamps + 1000 * NANOSECONDS
    robot.drive(course)
    mapper.wait_log('the stamps of /imu/mag and /odom never overlap')
    mapper.wait_diagnostics(lambda report: '1000.0 s ahead of' in report.message, '1000 s')


def test_mapping_continues_after_the_clock_jumped_back(session):
    mapper = session.mapper()
    field = mapper.watch('field')
    robot = session.robot(mapper)
    course = drive()
    robot.drive(course)
    first = mapper.finish(field)
    robot.drive(course)
    again = mapper.finish(field)
    report = mapper.fresh_diagnostics()
    # Only what is needed to recognize more than a single wrong stamp may be lost.
    assert again.readings_used >= 2 * len(course) - 20, report.refused()
    assert again.readings_used + again.readings_rejected == 2 * len(course)
    assert again.observations > 1.9 * first.observations
    assert deviation_from_truth(again)[0] < TRUE_ENOUGH
    assert 'went back by 14.0' in mapper.process.log or 'went back by 13.9' in mapper.process.log, mapper.process.log


def test_impossible_fields_and_poses_are_rejected_and_counted(session):
    mapper = session.mapper()
    field = mapper.watch('field')
    course = drive()
    course.readings[100:105] = math.nan
    course.readings[200, 1] = math.inf
    course.readings[300:303] = 0.0
    course.readings[400] *= 100.0
    course.poses[500:502, 0] = math.nan
    session.robot(mapper).drive(course)
    final = mapper.finish(field)
    refused = {'reading_not_finite': 6, 'field_too_weak': 3, 'field_too_strong': 1, 'pose_not_finite': 2}
    assert mapper.fresh_diagnostics().refused() == refused
    assert (final.readings_rejected, final.poses_rejected, final.readings_used) == (10, 2, len(course) - 10)
    assert deviation_from_truth(final)[0] < TRUE_ENOUGH


def test_simulated_time_stamps_the_diagnostics(session):
    mapper = session.mapper({'use_sim_time': True})
    clock = session.publisher(Clock, '/clock', BEST_EFFORT)

    def follows():
        clock.publish(Clock(clock=to_time(5000 * NANOSECONDS)))
        report = mapper.diagnostics
        return report is not None and report.stamp.sec == 5000

    found = lambda: mapper.diagnostics and mapper.diagnostics.stamp  # noqa: E731
    session.wait(follows, 'diagnostics stamped with the simulated time', seen=found)
    field = mapper.watch('field')
    course = drive(4.0)
    session.robot(mapper).drive(course)
    assert to_nanoseconds(mapper.finish(field).header.stamp) == course.reading_stamps[-1]
    assert mapper.parameter('use_sim_time') is True


# ---- Frames ----


def test_a_mount_from_transforms_equals_one_from_parameters(session):
    mount = {
        'sensor.override_transforms': True,
        'sensor.position': [MOUNT[0], MOUNT[1], MOUNT_HEIGHT],
        'sensor.orientation': [0.0, 0.0, MOUNT[2]],
    }
    session.broadcast_fixed(transform('base_link', 'imu', MOUNT, z=MOUNT_HEIGHT))
    maps = driven_by_both(session, [{}, mount], drive(mount=MOUNT), sensor='imu')
    assert_equal_maps(*maps)
    error, cells = deviation_from_truth(maps[0])
    assert error < TRUE_ENOUGH and cells > WELL_KNOWN, f'{error:.2f} microtesla over {cells} cells'


def test_poses_from_transforms_give_the_map_that_odometry_gives(session):
    origin = (2.0, 1.0, 0.5)
    session.broadcast_fixed(
        transform('map', 'odom', origin), transform('base_link', 'imu', MOUNT, z=MOUNT_HEIGHT)
    )
    variants = [{'frames.map': 'map', 'frames.pose_source': source} for source in ('odometry', 'transforms')]
    course = drive(mount=MOUNT, origin=origin)
    maps = driven_by_both(session, variants, course, sensor='imu', transforms=True)
    assert {message.header.frame_id for message in maps} == {'map'}
    assert_equal_maps(*maps)
    error, cells = deviation_from_truth(maps[0])
    assert error < TRUE_ENOUGH and cells > WELL_KNOWN, f'{error:.2f} microtesla over {cells} cells'


def driven_by_both(session, variants, course, **robot):
    """The maps of nodes with different parameters, of the same drive."""
    topics = {'imu/mag': '/imu/mag', 'odom': '/odom'}
    mappers = [
        session.mapper(parameters, namespace=f'/variant{number}', remappings=topics)
        for number, parameters in enumerate(variants)
    ]
    fields = [mapper.watch('field') for mapper in mappers]
    session.robot(*mappers, **robot).drive(course)
    maps = [mapper.finish(field) for mapper, field in zip(mappers, fields)]
    assert [message.readings_used for message in maps] == [len(course)] * len(maps)
    return maps


def assert_equal_maps(first, second):
    assert geometry_of(first.info) == geometry_of(second.info)
    np.testing.assert_allclose(first.mean, second.mean, rtol=1e-5)
    np.testing.assert_allclose(first.standard_deviation, second.standard_deviation, rtol=1e-3)


def test_a_jump_of_the_odometry_in_the_map_is_counted_and_reported(session):
    mapper = session.mapper({'frames.map': 'map'})
    field = mapper.watch('field')
    robot = session.robot(mapper, transforms=True)
    course = drive()
    robot.send_transform(transform('map', 'odom', (0.0, 0.0, 0.0), course.pose_stamps[0]))
    # As SLAM sends it: time and again, and a little ahead.
    for first in range(0, len(course), 50):
        x = 0.5 if first >= 350 else 0.0
        part = course[first : first + 50]
        robot.send_transform(transform('map', 'odom', (x, 0.0, 0.0), part.pose_stamps[-1] + 1000))
        robot.drive(part)
    final = mapper.finish(field)
    report = mapper.fresh_diagnostics()
    assert report.count('map jumps') == 1
    mapper.wait_log('frame "odom" jumped by 0.50 m')
    assert final.header.frame_id == 'map'
    assert final.readings_used + final.readings_rejected == len(course) and final.readings_used > 0.8 * len(course)

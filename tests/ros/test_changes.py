"""A shelf that is brought in between two runs: the node says where the building has changed, and its map follows."""

import numpy as np
from visualization_msgs.msg import MarkerArray

from harness import drive, harmonic_field_at, LATCHED, MICROTESLA

# Two laps of the eight of 11 m on each day. Odometry keeps its frame.
SECONDS = 28.0
SETTINGS = {'model.field': 'vector', 'frames.odometry_is_fixed': True}
# Beside the right end of the eight, below the sensor.
SHELF, MOMENT = np.array([1.6, 0.0, -0.35]), np.array([0.0, 3.0, 12.0])


def with_shelf(x, y):
    """The field of a dipole (Jackson, Classical Electrodynamics, section 5.6), in that of the room, in tesla."""
    offset = np.stack([x, y, np.zeros_like(x)], axis=-1) - SHELF
    distance = np.linalg.norm(offset, axis=-1, keepdims=True)
    direction = offset / distance
    dipole = (3.0 * direction * (direction @ MOMENT)[..., None] - MOMENT) / distance**3
    return harmonic_field_at(x, y) + 0.1 * MICROTESLA * dipole


def texts(message):
    return [marker for marker in message.markers if marker.text.startswith('changed\n')]


def test_a_shelf_that_was_brought_in_is_marked_and_the_map_follows(session):
    first = session.mapper(SETTINGS)
    robot = session.robot(first).drive(drive(SECONDS, field=harmonic_field_at))
    first.finish(first.watch('field'))
    assert first.diagnostics.values['changes of the building'] == '0'
    assert first.process.stop() == 0

    second = session.mapper(SETTINGS)
    markers = session.collect(MarkerArray, f'{second.name}/changes', LATCHED)
    robot.turn_to(second)
    robot.sent_readings = 0
    robot.drive(drive(SECONDS, field=with_shelf).later(SECONDS + 60.0))
    second.wait_log('the field has changed around (1.')
    message = markers.wait(texts, 'a marker of the change')
    [places] = [marker.points for marker in message.markers if marker.points]
    x, y = np.mean([[place.x, place.y] for place in places], axis=0)
    assert abs(x - SHELF[0]) < 0.6 and abs(y - SHELF[1]) < 0.6, f'changed around ({x:.1f}, {y:.1f})'
    # Its label is above, where it hides none of the places.
    [text] = texts(message)
    assert text.pose.position.y > max(place.y for place in places) + 0.5 * text.scale.z
    second.wait_diagnostics(lambda report: report.values['changes of the building'] == '1', 'a change of the building')
    second.finish(second.watch('field'))
    beside = np.array([[1.2, 0.0, 0.0], [1.15, 0.3, 0.0], [1.15, -0.3, 0.0]])
    found = np.array([[axes.x, axes.y, axes.z] for axes in second.query(beside).field])
    off = np.abs(found - with_shelf(beside[:, 0], beside[:, 1])).max() / MICROTESLA
    assert off < 5.0, f'{off:.1f} microtesla off the field with the shelf'
    assert second.process.stop() == 0

    # The next run knows of it.
    third = session.mapper(SETTINGS)
    again = session.collect(MarkerArray, f'{third.name}/changes', LATCHED)
    assert len(texts(again.wait(texts, 'the marker of the run before'))) == 1
    assert third.process.stop() == 0

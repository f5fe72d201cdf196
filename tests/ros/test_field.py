"""What is mapped where nothing is set: the three axes, or the strength and a line that says why and how to get the axes."""

from dataclasses import replace
import math

import numpy as np
import pytest

from harness import drive, harmonic_field_at, transform

MOUNT = (0.2, -0.1, 0.7)

# Laps of 11 m: the choice is made after 20 m.
SECONDS = 35.0

AGREES = 'the three axes are mapped: over'
CONTRADICTS = 'the strength is mapped: the axes of the readings contradict the physics of a magnetic field'
UNKNOWN = 'the strength is mapped: the mount of the sensor is unknown'


@pytest.fixture
def mapped(session):
    """Drives with a sensor that is mounted like this, and a transform that says so or not: the node, and its map."""

    def run(actual, recorded, up=1.0):
        mapper = session.mapper()
        field = mapper.watch('field')
        robot = session.robot(mapper, sensor='imu')
        if recorded:
            session.broadcast_fixed(transform('base_link', 'imu', recorded))
        course = drive(SECONDS, mount=actual, field=harmonic_field_at)
        robot.drive(replace(course, readings=course.readings * [1.0, 1.0, up]))
        return mapper, mapper.finish(field), len(course)

    return run


def choice(mapper):
    """What the node says of it: the same in its diagnostics and, once, in its log."""
    words = mapper.fresh_diagnostics().values['choice of the field']
    assert mapper.process.log.count(words) == 1, mapper.process.log
    return words


@pytest.mark.parametrize(
    ('recorded', 'up'),
    [
        pytest.param(MOUNT, 1.0, id='right'),
        pytest.param((0.2, -0.1, 0.7 + math.pi), 1.0, id='half a turn'),
        pytest.param(MOUNT, -1.0, id='z reversed'),
    ],
)
def test_the_axes_are_mapped_where_the_mount_is_right_or_looks_right(mapped, recorded, up):
    mapper, field, sent = mapped(MOUNT, recorded, up)
    assert choice(mapper).startswith(AGREES)
    assert len(field.axes) == 3 * len(field.mean) and field.readings_used == sent
    # Steel that is below seems to be above where the sensor is turned by half a turn, or reversed.
    is_right = recorded == MOUNT and up > 0.0
    assert field.share_below > 0.9 if is_right else field.share_below < 0.1, field.share_below


def test_the_strength_is_mapped_where_the_mount_is_turned_by_a_quarter(mapped):
    mapper, field, sent = mapped((0.2, -0.1, 0.7 + math.pi / 2), MOUNT)
    words = choice(mapper)
    assert words.startswith(CONTRADICTS) and 'the sensor were turned by 90 or -90 degrees' in words, words
    assert words.endswith('Once the cause is mended, a new map has the three axes')
    assert len(field.axes) == 0 and field.readings_used == sent


def test_the_strength_is_mapped_where_the_mount_is_missing(mapped):
    mapper, field, sent = mapped(MOUNT, None)
    assert choice(mapper).startswith(UNKNOWN) and 'then a new map has the three axes' in choice(mapper)
    assert 'frame "imu" has no transform to "base_link": only the strength' in mapper.process.log
    # But for those from before the robot had moved by half a metre.
    report = mapper.fresh_diagnostics()
    rejected = report.refused()['reading_without_transform']
    assert len(field.axes) == 0 and field.readings_used == sent - rejected and 10 < rejected < 100


def test_readings_that_are_late_are_mapped_where_they_were_taken(session):
    mapper = session.mapper()
    field = mapper.watch('field')
    robot = session.robot(mapper, sensor='imu')
    session.broadcast_fixed(transform('base_link', 'imu', MOUNT))
    course = drive(SECONDS, mount=MOUNT, field=harmonic_field_at)
    # Each reading is that of seven steps of 20 ms before.
    robot.drive(replace(course[7:], readings=course.readings[:-7]))
    mapper.finish(field)
    delay = float(mapper.fresh_diagnostics().values['delay of readings'].removesuffix(' s'))
    assert delay == pytest.approx(0.14, abs=0.02)
    assert 'later than poses (sensor.delay); they are mapped where they were taken' in mapper.process.log


def test_a_mount_that_comes_while_the_robot_stands_leads_to_the_axes(session):
    mapper = session.mapper()
    field = mapper.watch('field')
    robot = session.robot(mapper, sensor='imu')
    course = drive(SECONDS, mount=MOUNT, field=harmonic_field_at)
    # It stands for twenty seconds before its description is published.
    standing = course[:1000]
    standing = replace(
        standing,
        poses=np.repeat(course.poses[:1], 1000, axis=0),
        readings=np.repeat(course.readings[:1], 1000, axis=0) * (1.0 + 1e-6 * (np.arange(1000)[:, None] % 7)),
    )
    robot.drive(standing)
    mapper.wait_log('frame "imu" has no transform to "base_link"')
    session.broadcast_fixed(transform('base_link', 'imu', MOUNT))
    robot.drive(course.later(1000 / 50.0))
    mapper.finish(field)
    assert choice(mapper).startswith(AGREES) and len(field.last.axes) > 0

"""Reads a converted drive with a reader that is not magmap's, and compares every message with the drive's files.

    pip install rosbags numpy
    python independent_reader.py BAG DRIVE_PREFIX       (for example: out/bag FOLDER/invensense/3)

Prints what was compared; exits with 1 and the first differences where the bag does not hold what the files say.
"""

import sys
from pathlib import Path

import numpy as np
from rosbags.rosbag2 import Reader
from rosbags.typesys import Stores, get_typestore

# Microtesla in one unit of a sensor's files; trivisio's is magmap's TRIVISIO_UNIT.
UNITS = {"invensense": 1.0, "nexus": 1.0, "trivisio": 44.6}
TYPES = {
    "/imu/mag": "sensor_msgs/msg/MagneticField",
    "/odom": "nav_msgs/msg/Odometry",
    "/tf": "tf2_msgs/msg/TFMessage",
    "/tf_static": "tf2_msgs/msg/TFMessage",
}

differences = []


def check(holds, what):
    """Notes a difference."""
    if not holds:
        differences.append(what)


def read_drive(prefix):
    """Seconds, positions and fields (microtesla) of the rows in which nothing is missing."""
    prefix = Path(prefix)
    columns = [np.genfromtxt(f"{prefix}-{kind}.csv", delimiter=",") for kind in ("time", "loc", "mag")]
    complete = ~np.isnan(np.column_stack(columns)).any(axis=1)
    seconds, positions, fields = (column[complete] for column in columns)
    return seconds, positions, fields * UNITS[prefix.resolve().parent.name]


def read_bag(path):
    """Per topic: recorded times (nanoseconds) and messages, after a look at topics, types and counts."""
    store = get_typestore(Stores.ROS2_HUMBLE)
    topics = {topic: ([], []) for topic in TYPES}
    with Reader(path) as reader:
        found = {connection.topic: connection.msgtype for connection in reader.connections}
        check(found == TYPES, f"topics and types: {found}, expected {TYPES}")
        for connection, time, raw in reader.messages():
            times, messages = topics[connection.topic]
            times.append(time)
            messages.append(store.deserialize_cdr(raw, connection.msgtype))
        for connection in reader.connections:
            counted = len(topics[connection.topic][0])
            check(connection.msgcount == counted, f"{connection.topic}: {connection.msgcount} stated, {counted} read")
        total = sum(len(times) for times, _ in topics.values())
        check(reader.message_count == total, f"{reader.message_count} messages stated, {total} read")
        every = np.concatenate([times for times, _ in topics.values()])
        check(reader.start_time == every.min(), f"starting time {reader.start_time}, first message {every.min()}")
        check(reader.end_time - 1 == every.max(), f"end time {reader.end_time - 1}, last message {every.max()}")
    return {topic: (np.array(times, dtype=np.int64), messages) for topic, (times, messages) in topics.items()}


def rotations(quaternions):
    """Rotation matrices of quaternions x, y, z, w: (N, 4) -> (N, 3, 3)."""
    norms = np.linalg.norm(quaternions, axis=1)
    check(np.abs(norms - 1).max() < 1e-12, f"quaternions of norm {norms.min()} to {norms.max()}")
    x, y, z, w = (quaternions / norms[:, None]).T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return np.moveaxis(np.array(rows), 2, 0)


def vector(message):
    return [message.x, message.y, message.z]


def quaternion(message):
    return [message.x, message.y, message.z, message.w]


def nanoseconds(stamp):
    return stamp.sec * 1_000_000_000 + stamp.nanosec


def transform(messages, parent, child):
    """Translations and rotations of messages with one transform each."""
    check(all(len(message.transforms) == 1 for message in messages), f"{parent} -> {child}: not one transform each")
    links = [message.transforms[0] for message in messages]
    names = {(link.header.frame_id, link.child_frame_id) for link in links}
    check(names == {(parent, child)}, f"frames {names}, expected {parent} -> {child}")
    translations = np.array([vector(link.transform.translation) for link in links])
    quaternions = np.array([quaternion(link.transform.rotation) for link in links])
    return [nanoseconds(link.header.stamp) for link in links], translations, rotations(quaternions)


def directions(positions, spacing=0.05, neighbours=3):
    """The direction of travel: between the neighbours of equally spaced points of the path, averaged, and interpolated."""
    travelled = np.r_[0, np.cumsum(np.linalg.norm(np.diff(positions, axis=0), axis=1))]
    numbers = np.arange(int(travelled[-1] / spacing) + 1)
    points = np.column_stack([np.interp(numbers * spacing, travelled, axis) for axis in positions.T])
    motion = points[np.minimum(numbers + 1, numbers[-1])] - points[np.maximum(numbers - 1, 0)]
    units = motion / np.linalg.norm(motion, axis=1)[:, None]
    around = np.clip(numbers[:, None] + np.arange(-neighbours, neighbours + 1), 0, numbers[-1])
    smooth = units[around].sum(axis=1)
    facing = np.column_stack([np.interp(travelled / spacing, numbers, part) for part in smooth.T])
    return facing / np.linalg.norm(facing, axis=1)[:, None]


def check_stamps(topic, recorded, stamps, seconds):
    """Every message is stamped as its row; rows that repeat a stamp lie between it and the next."""
    stamps = np.array(stamps, dtype=np.int64)
    check((stamps == recorded).all(), f"{topic}: header and recorded time differ")
    check((np.diff(stamps) > 0).all(), f"{topic}: stamps do not increase")
    expected = np.round(seconds * 1e9).astype(np.int64)
    first = np.concatenate([[True], np.diff(expected) > 0])
    check((stamps[first] == expected[first]).all(), f"{topic}: stamps differ from the files'")
    between = (stamps >= expected).all() and (stamps[:-1] < expected[1:])[first[1:]].all()
    check(between, f"{topic}: repeated stamps moved too far")


def main(bag, prefix):
    seconds, positions, fields = read_drive(prefix)
    topics = read_bag(bag)
    rows = len(seconds)
    counts = {topic: len(times) for topic, (times, _) in topics.items()}
    expected = {"/imu/mag": rows, "/odom": rows, "/tf": rows, "/tf_static": 1}
    check(counts == expected, f"messages per topic: {counts}, expected {expected}")
    if differences:
        return

    times, readings = topics["/imu/mag"]
    check({reading.header.frame_id for reading in readings} == {"magnetometer"}, "/imu/mag: frame is not magnetometer")
    check_stamps("/imu/mag", times, [nanoseconds(reading.header.stamp) for reading in readings], seconds)
    axes = np.array([vector(reading.magnetic_field) for reading in readings]) * 1e6
    covariances = np.array([reading.magnetic_field_covariance for reading in readings])
    check(covariances.shape == (rows, 9) and not covariances.any(), "/imu/mag: covariance is not all zero")

    times, poses = topics["/odom"]
    names = {(pose.header.frame_id, pose.child_frame_id) for pose in poses}
    check(names == {("odom", "base_link")}, f"/odom: frames {names}")
    check_stamps("/odom", times, [nanoseconds(pose.header.stamp) for pose in poses], seconds)
    body = np.array([vector(pose.pose.pose.position) for pose in poses])
    heading = rotations(np.array([quaternion(pose.pose.pose.orientation) for pose in poses]))
    check(np.allclose(heading[:, 2], [0, 0, 1], atol=1e-12), "/odom: the robot does not stand upright")
    # Rows on a point of the path may be counted to either side of it by rounding.
    facing = directions(positions)
    check(np.allclose(heading[:, :2, 0], facing, atol=1e-6), "/odom: heading is not that of the motion")

    times, messages = topics["/tf"]
    stamps, translations, turned = transform(messages, "odom", "base_link")
    check_stamps("/tf", times, stamps, seconds)
    check((translations == body).all() and (turned == heading).all(), "/tf differs from /odom")
    _, (lever,), (mount,) = transform(topics["/tf_static"][1], "base_link", "magnetometer")

    sensor = body + heading @ lever
    place = np.abs(sensor - np.column_stack([positions, np.zeros(rows)])).max()
    check(place < 1e-9, f"positions differ by up to {place} m")
    back = np.einsum("nij,nj->ni", heading @ mount, axes)
    error = (np.linalg.norm(back - fields, axis=1) / np.linalg.norm(fields, axis=1)).max()
    check(error <= 1e-9, f"fields differ by up to {error}, relative")
    spread = np.ptp(np.arctan2(heading[:, 1, 0], heading[:, 0, 0]))
    print(f"{bag}: {rows} rows; fields within {error:.1e} (relative), positions within {place:.1e} m, ", end="")
    print(f"headings over {np.degrees(spread):.0f} degrees, lever arm {np.linalg.norm(lever):.2f} m")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
    for difference in differences[:20]:
        print(f"DIFFERENT: {difference}", file=sys.stderr)
    sys.exit(1 if differences else 0)

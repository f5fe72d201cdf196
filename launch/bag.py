"""What a launch file has to know of a bag before it is played."""

import hashlib
import json
from pathlib import Path
import re

from nav_msgs.msg import Odometry
from rclpy.serialization import deserialize_message
import rosbag2_py

# The type of each topic that is mapped, by the argument that names it.
MAPPED = {'magnetometer_topic': 'sensor_msgs/msg/MagneticField', 'odometry_topic': 'nav_msgs/msg/Odometry'}

A_BAG = 'a rosbag2 folder, or an .mcap or .db3 file'


def reject_other(bag):
    """Rejects what is not a bag, with alternatives."""
    path = Path(bag)
    if not bag or not path.exists():
        raise RuntimeError(f'bag: expected {A_BAG}{f", found nothing at {bag}" if bag else " (bag:=house), found none"}')
    if path.is_dir() and not (path / 'metadata.yaml').is_file():
        files = ' or '.join(f'bag:={file}' for kind in ('*.mcap', '*.db3') for file in sorted(path.glob(kind)))
        folders = ' or '.join(f'bag:={metadata.parent}' for metadata in sorted(path.glob('*/metadata.yaml')))
        advice = f'name a bag in it, {folders}' if folders else 'nor is an .mcap or .db3 file in it'
        advice = f'name a file in it, {files}, or have it made by ros2 bag reindex {bag}' if files else advice
        raise RuntimeError(f'bag: expected metadata.yaml in the folder {bag}, found none; {advice}')


def metadata_of(bag):
    return rosbag2_py.Info().read_metadata(bag, '')


def recorded_types(bag):
    """The type of each topic in the bag."""
    return {topic.topic_metadata.name: topic.topic_metadata.type for topic in metadata_of(bag).topics_with_message_count}


def played_types(recorded):
    """The topics that are played: of the clock, and of the topics of a node of ours, there would be two publishers."""
    return {topic: kind for topic, kind in recorded.items() if topic != '/clock' and '/magmap/' not in topic}


def chosen_topic(bag, types, name, topic):
    """The given topic, or else the only one of this type."""
    is_meant = lambda found: types[found] == MAPPED[name] and topic.lstrip('/') in ('', found.lstrip('/'))  # noqa: E731
    candidates = sorted(filter(is_meant, types))
    if len(candidates) == 1:
        return candidates[0]
    expected = f'{bag}: expected {topic or "one topic"} of type {MAPPED[name]}'
    if candidates:
        raise RuntimeError(f'{expected}, found several; choose with {name}:={"|".join(candidates)}')
    found = ', '.join(f'{topic} ({types[topic]})' for topic in sorted(types)) or 'no topic'
    raise RuntimeError(f'{expected}, found {found}')


def first_frame(bag, topic):
    """The frame of the first odometry message, which is that of the map unless the settings name another."""
    metadata = metadata_of(bag)
    reader = rosbag2_py.SequentialCompressionReader() if metadata.compression_format else rosbag2_py.SequentialReader()
    reader.open(rosbag2_py.StorageOptions(uri=bag, storage_id=''), rosbag2_py.ConverterOptions('', ''))
    reader.set_filter(rosbag2_py.StorageFilter(topics=[topic]))
    return deserialize_message(reader.read_next()[1], Odometry).header.frame_id if reader.has_next() else ''


def name_of(bag):
    """The name of the folder or file, without the file's extension, as a valid name of a map."""
    path = Path(bag).resolve()
    return re.sub(r'[^A-Za-z0-9._-]', '_', path.name if path.is_dir() else path.stem).lstrip('.') or 'bag'


def fingerprint_of(bag):
    """Identifies a recording, wherever it is stored, by its start, its duration and the messages on its topics."""
    metadata = metadata_of(bag)
    topics = [
        (topic.topic_metadata.name, topic.topic_metadata.type, topic.message_count)
        for topic in metadata.topics_with_message_count
    ]
    content = [metadata.starting_time.nanoseconds, metadata.duration.nanoseconds, metadata.message_count, sorted(topics)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()

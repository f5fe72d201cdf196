"""Plays a bag into the node, from the first message to the last: the player starts once the node listens, the node flushes last."""

import atexit
import json
from pathlib import Path
import shutil
import sys
import tempfile

from launch import LaunchDescription
from launch.actions import (
    DeclareLaunchArgument,
    ExecuteProcess,
    IncludeLaunchDescription,
    LogInfo,
    OpaqueFunction,
    RegisterEventHandler,
    Shutdown,
)
from launch.event_handlers import OnProcessExit
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch_ros.actions import Node
from launch_ros.utilities import make_namespace_absolute, prefix_namespace

LAUNCH_FOLDER = Path(__file__).resolve().parent

MAGNETOMETER = 'sensor_msgs/msg/MagneticField'
ODOMETRY = 'nav_msgs/msg/Odometry'

# Messages that the player keeps for a node that is behind.
PLAYER_DEPTH = 1000

# Milliseconds that the player waits at the end for the node to have received everything.
PLAYER_PATIENCE = '10000'

ARGUMENTS = [
    DeclareLaunchArgument('bag', description='The bag: a rosbag2 folder, or a single .mcap or .db3 file.'),
    DeclareLaunchArgument('rate', default_value='1.0', description='How many times faster than recorded it is played.'),
    DeclareLaunchArgument('clock', default_value='100.0', description='How often /clock is published, per second.'),
    DeclareLaunchArgument(
        'exit',
        default_value='false',
        choices=['true', 'false'],
        description='Whether everything stops when the bag is over and the map flushed.',
    ),
    DeclareLaunchArgument('rviz', default_value='true', description='Whether RViz shows the map: true or false.'),
    DeclareLaunchArgument(
        'reliability',
        default_value='reliable',
        choices=['best_effort', 'reliable'],
        description='Reliability of the subscriptions. reliable loses nothing, whatever the bag was recorded with.',
    ),
    DeclareLaunchArgument(
        'magnetometer_topic',
        default_value='',
        description=f'Topic of the magnetometer in the bag. Empty means the only one of type {MAGNETOMETER}.',
    ),
    DeclareLaunchArgument(
        'odometry_topic',
        default_value='',
        description=f'Topic of the odometry in the bag. Empty means the only one of type {ODOMETRY}.',
    ),
]


def generate_launch_description():
    mapping = PythonLaunchDescriptionSource(str(LAUNCH_FOLDER / 'mapping.launch.py'))
    return LaunchDescription([
        *ARGUMENTS,
        OpaqueFunction(function=choose_topics),
        IncludeLaunchDescription(mapping, launch_arguments={'use_sim_time': 'true'}.items()),
        OpaqueFunction(function=play),
    ])


def choose_topics(context):
    """Fills in the topics and RViz's frame with what the bag holds."""
    given = context.launch_configurations
    given['bag'] = str(Path(given['bag']).expanduser())
    for argument, message_type in [('magnetometer_topic', MAGNETOMETER), ('odometry_topic', ODOMETRY)]:
        given[argument] = choose_topic(given['bag'], message_type, argument, given[argument])
    if not given.get('fixed_frame') and not given.get('map_frame'):
        given['fixed_frame'] = first_odometry_frame(given['bag'], given['odometry_topic'])
    return [LogInfo(msg=f"mapping {given['magnetometer_topic']} along {given['odometry_topic']} of {given['bag']}")]


def topic_types(bag):
    """The type of each topic in the bag."""
    from rosbag2_py import Info

    topics = Info().read_metadata(bag, '').topics_with_message_count
    return {topic.topic_metadata.name: topic.topic_metadata.type for topic in topics}


def choose_topic(bag, message_type, argument, topic):
    """The topic that was asked for, or else the only one of this type."""
    types = topic_types(bag)
    candidates = sorted(name for name, found in types.items() if found == message_type)
    if topic:
        topic = topic if topic.startswith('/') else f'/{topic}'
        candidates = [name for name in candidates if name == topic]
    if len(candidates) == 1:
        return candidates[0]
    expected = f'{topic or "one topic"} of type {message_type}'
    if candidates:
        raise RuntimeError(f'{bag}: expected {expected}, found several; choose with {argument}:={"|".join(candidates)}')
    found = ', '.join(f'{name} ({types[name]})' for name in sorted(types)) or 'no topic'
    raise RuntimeError(f'{bag}: expected {expected}, found {found}')


def first_odometry_frame(bag, topic):
    """The frame of the first odometry message, which the map is in unless the settings say otherwise."""
    from nav_msgs.msg import Odometry
    from rclpy.serialization import deserialize_message
    import rosbag2_py

    compressed = rosbag2_py.Info().read_metadata(bag, '').compression_format
    reader = rosbag2_py.SequentialCompressionReader() if compressed else rosbag2_py.SequentialReader()
    reader.open(rosbag2_py.StorageOptions(uri=bag, storage_id=''), rosbag2_py.ConverterOptions('', ''))
    reader.set_filter(rosbag2_py.StorageFilter(topics=[topic]))
    if not reader.has_next():
        return ''
    return deserialize_message(reader.read_next()[1], Odometry).header.frame_id


def play(context):
    given = context.launch_configurations
    node = node_name(given)
    player = ExecuteProcess(cmd=play_command(given, node), name='player', output='screen')
    resume = ExecuteProcess(
        cmd=[
            sys.executable, str(LAUNCH_FOLDER / 'resume_when_matched.py'),
            '--node', node,
            '--topics', given['magnetometer_topic'], given['odometry_topic'],
        ],
        name='resume_when_matched',
        output='screen',
    )
    flush = ExecuteProcess(
        cmd=['ros2', 'service', 'call', f'{node}/flush', 'std_srvs/srv/Trigger'], name='flush', output='screen'
    )

    def is_node(action):
        return isinstance(action, Node) and action.node_executable == 'magmap_node'

    def after(target, actions):
        """Does what actions(succeeded) says when the target has ended, unless everything is being shut down."""

        def handle(event, context):
            return [] if context.is_shutdown else actions(event.returncode == 0)

        return RegisterEventHandler(OnProcessExit(target_action=target, on_exit=handle))

    def stop(reason):
        return [LogInfo(msg=reason), Shutdown(reason=reason)]

    end = stop('the bag is over and the map flushed') if given['exit'] == 'true' else []
    return [
        after(resume, lambda succeeded: [] if succeeded else stop('stopping, because the node and the player did not meet')),
        after(player, lambda succeeded: [flush] if succeeded else stop('stopping, because the bag could not be played')),
        after(flush, lambda succeeded: end),
        after(is_node, lambda succeeded: stop('stopping, because the node has ended')),
        player,
        resume,
    ]


def node_name(given):
    """The node's full name."""
    namespace = prefix_namespace(given.get('ros_namespace', ''), given.get('namespace', ''))
    return f"{(make_namespace_absolute(namespace) or '').rstrip('/')}/magmap"


def play_command(given, node):
    types = topic_types(given['bag'])
    # The player makes /clock itself, and the node its own topics: recorded ones would come on top of them.
    played = [topic for topic in types if topic != '/clock' and not topic.startswith(f'{node}/')]
    topics = ['--topics', *played] if len(played) < len(types) else []
    return [
        'ros2', 'bag', 'play', given['bag'],
        '--start-paused', '--disable-keyboard-controls',
        '--clock', given['clock'],
        '--rate', given['rate'],
        '--wait-for-all-acked', PLAYER_PATIENCE,
        '--qos-profile-overrides-path', quality_of_service(given, types),
        *topics,
    ]


def quality_of_service(given, types):
    """A file that says how the player publishes: as the bag says, except for what a node could miss otherwise."""
    reliable = {'reliability': 'reliable', 'history': 'keep_last', 'depth': PLAYER_DEPTH}
    overrides = {}
    if given['reliability'] == 'reliable':
        overrides = {given['magnetometer_topic']: reliable, given['odometry_topic']: reliable}
    if '/tf_static' in types:
        overrides['/tf_static'] = {**reliable, 'durability': 'transient_local'}
    folder = tempfile.mkdtemp(prefix='magmap-replay-')
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / 'quality_of_service.yaml'
    # JSON is YAML.
    path.write_text(json.dumps(overrides))
    return str(path)

"""Plays a whole bag into the node: the player starts once the node has subscribed, and at the end the node flushes."""

import atexit
import hashlib
import json
import os
from pathlib import Path
import re
import shutil
import sys
import tempfile

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, ExecuteProcess, LogInfo, OpaqueFunction, RegisterEventHandler
from launch.event_handlers import OnProcessIO
from launch.launch_description_sources.python_launch_file_utilities import load_python_launch_file_as_module
from launch_ros.utilities import make_namespace_absolute, prefix_namespace

LAUNCH_FOLDER = Path(__file__).resolve().parent

mapping = load_python_launch_file_as_module(str(LAUNCH_FOLDER / 'mapping.launch.py'))
arguments, ending = mapping.arguments, mapping.ending

MAGNETOMETER = 'sensor_msgs/msg/MagneticField'
ODOMETRY = 'nav_msgs/msg/Odometry'

A_BAG = 'a rosbag2 folder, or an .mcap or .db3 file'

# Reported once the node has subscribed, and the player can start.
SUBSCRIBED = 'the node has subscribed: starting the player'

# Queue size of the player, for a node that is behind.
PLAYER_DEPTH = 1000

# Milliseconds that the player waits at the end until the node has received everything.
PLAYER_PATIENCE = '10000'

ARGUMENTS = [
    DeclareLaunchArgument(
        'bag', default_value='', description='The bag: a rosbag2 folder, or a single .mcap or .db3 file. It must be given.'
    ),
    DeclareLaunchArgument(
        'use_sim_time', default_value='true', description='Must be true: the time is that of the bag, from /clock.'
    ),
    DeclareLaunchArgument('rate', default_value='1.0', description='How many times faster than recorded it is played.'),
    DeclareLaunchArgument('clock', default_value='100.0', description='How often /clock is published, per second.'),
    DeclareLaunchArgument(
        'exit',
        default_value='false',
        description='Whether everything stops when the bag is over and the map flushed: true or false.',
    ),
    DeclareLaunchArgument('rviz', default_value='true', description='Whether RViz shows the map: true or false.'),
    DeclareLaunchArgument(
        'reliability',
        default_value='reliable',
        description='Reliability of the subscriptions: best_effort or reliable. reliable loses nothing, whatever the bag was '
        'recorded with.',
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
    DeclareLaunchArgument(
        'map_folder',
        default_value='',
        description='Folder of saved maps. Empty means the folder replays in ~/.ros/magmap, apart from the maps of robots.',
    ),
    DeclareLaunchArgument(
        'map_name',
        default_value='',
        description='Name of the map in this folder. Empty means one for this recording, whatever the name of the bag.',
    ),
    DeclareLaunchArgument(
        'load_at_start',
        default_value='false',
        description='Whether the saved map is loaded, where there is one, and continued: true or false.',
    ),
]
OWN = [argument.name for argument in ARGUMENTS]
ARGUMENTS += [argument for argument in mapping.ARGUMENTS if argument.name not in OWN]


def generate_launch_description():
    return LaunchDescription([*ARGUMENTS, OpaqueFunction(function=ending.rejecting(start))])


def start(context):
    arguments.check_command_line(__file__, sys.argv, ARGUMENTS)
    given = context.launch_configurations
    arguments.reject_false(given, 'use_sim_time', "the node follows the bag's clock")
    for argument in ('rate', 'clock'):
        arguments.reject_not_positive(given, argument)
    arguments.boolean('exit', given['exit'])
    arguments.reject_other(given, 'reliability', mapping.CHOICES['reliability'])
    if not given['bag']:
        raise RuntimeError(f'bag: expected {A_BAG} (bag:=house), found none')
    given['bag'] = str(Path(given['bag']).expanduser())
    reject_no_bag(given['bag'])
    recording = choose(given)
    # All arguments are valid: from here on processes start.
    watch = ending.Ending(is_whole=True)
    return [
        *watch.handlers(),
        LogInfo(msg=f"mapping {given['magnetometer_topic']} along {given['odometry_topic']} of {given['bag']}"),
        *mapping.node_and_rviz(context, watch, extra={'node.recording': recording}),
        *play(context, watch),
    ]


def reject_no_bag(bag):
    """Rejects what is not a bag, with alternatives."""
    path = Path(bag)
    if not path.exists():
        raise RuntimeError(f'bag: expected {A_BAG}, found nothing at {bag}')
    if not path.is_dir() or (path / 'metadata.yaml').is_file():
        return
    files = sorted(str(file) for kind in ('*.mcap', '*.db3') for file in path.glob(kind))
    folders = sorted(str(metadata.parent) for metadata in path.glob('*/metadata.yaml'))
    if files:
        advice = f'name a file in it, {either(files)}, or have it made by ros2 bag reindex {bag}'
    elif folders:
        advice = f'name a bag in it, {either(folders)}'
    else:
        advice = 'nor is an .mcap or .db3 file in it'
    raise RuntimeError(f'bag: expected metadata.yaml in the folder {bag}, found none; {advice}')


def either(paths):
    return ' or '.join(f'bag:={path}' for path in paths)


def choose(given):
    """Fills in topics, RViz's frame and the map's location from the bag. Returns the identity of the recording."""
    types = played_types(given['bag'], node_name(given))
    for argument, message_type in [('magnetometer_topic', MAGNETOMETER), ('odometry_topic', ODOMETRY)]:
        given[argument] = choose_topic(given['bag'], types, message_type, argument, given[argument])
    if not given.get('fixed_frame') and not given.get('map_frame'):
        given['fixed_frame'] = first_odometry_frame(given['bag'], given['odometry_topic'])
    name, fingerprint = bag_name(given['bag']), fingerprint_of(metadata_of(given['bag']))
    given['map_folder'] = given['map_folder'] or str(default_map_folder() / 'replays')
    given['map_name'] = given['map_name'] or f'{name}-{fingerprint[:8]}'
    return f'{name}#{fingerprint}'


def default_map_folder():
    """The default map folder of the node."""
    home = os.environ.get('ROS_HOME')
    return (Path(home) if home else Path.home() / '.ros') / 'magmap'


def bag_name(bag):
    """The name of the folder or file, without the file's extension, as a valid name of a map."""
    path = Path(bag).resolve()
    name = path.name if path.is_dir() else path.stem
    return re.sub(r'[^A-Za-z0-9._-]', '_', name).lstrip('.') or 'bag'


def fingerprint_of(metadata):
    """Identifies a recording, wherever it is stored, by its start, its duration and the messages on its topics."""
    topics = [
        (topic.topic_metadata.name, topic.topic_metadata.type, topic.message_count)
        for topic in metadata.topics_with_message_count
    ]
    content = [metadata.starting_time.nanoseconds, metadata.duration.nanoseconds, metadata.message_count, sorted(topics)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def metadata_of(bag):
    from rosbag2_py import Info

    return Info().read_metadata(bag, '')


def topic_types(bag):
    """The type of each topic in the bag."""
    topics = metadata_of(bag).topics_with_message_count
    return {topic.topic_metadata.name: topic.topic_metadata.type for topic in topics}


def played_types(bag, node):
    """The type of each topic that is played: of /clock and of the node's own topics there would be two publishers."""
    return {name: kind for name, kind in topic_types(bag).items() if name != '/clock' and not name.startswith(f'{node}/')}


def choose_topic(bag, types, message_type, argument, topic):
    """The given topic, or else the only one of this type."""
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
    """The frame of the first odometry message, which is that of the map unless the settings name another."""
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


def play(context, watch):
    given = context.launch_configurations
    node = node_name(given)
    follows = ending.ended_with_launch(context, 'TERM')
    player = ExecuteProcess(cmd=play_command(given, node), name='player', output='screen', **follows)
    resume = ExecuteProcess(
        cmd=[
            sys.executable, str(LAUNCH_FOLDER / 'resume_when_matched.py'),
            '--node', node,
            '--say', SUBSCRIBED,
            '--topics', given['magnetometer_topic'], given['odometry_topic'],
        ],
        name='resume_when_matched',
        output='screen',
        **follows,
    )
    flush = ExecuteProcess(
        cmd=['ros2', 'service', 'call', f'{node}/flush', 'std_srvs/srv/Trigger'], name='flush', output='screen', **follows
    )
    over = 'the bag is over and the map flushed'

    def end():
        if arguments.boolean('exit', given['exit']):
            return [LogInfo(msg=over), *watch.stop(over)]
        return [LogInfo(msg=f'{over}: Ctrl-C ends the node; exit:=true would have done that now')]

    start_flush = watch.helper(flush, 'flush', 'the map could not be flushed', then=end)
    start_player = watch.helper(player, 'player', 'the bag could not be played', then=lambda: start_flush)

    def once_subscribed(event):
        """Starts the player; earlier, a node that rejects its parameters could interrupt its start."""
        return start_player if SUBSCRIBED in event.text.decode(errors='replace') else []

    return [
        RegisterEventHandler(OnProcessIO(target_action=resume, on_stdout=once_subscribed)),
        *watch.helper(resume, 'resume_when_matched', 'the bag is not played'),
    ]


def node_name(given):
    """The node's full name."""
    namespace = prefix_namespace(given.get('ros_namespace', ''), given.get('namespace', ''))
    return f"{(make_namespace_absolute(namespace) or '').rstrip('/')}/magmap"


def without_progress_bar():
    """From Kilted on the player draws a progress bar, which moves the cursor over what the other processes have said."""
    from rosbag2_py import PlayOptions

    return ['--progress-bar-update-rate', '0'] if hasattr(PlayOptions, 'progress_bar_update_rate') else []


def play_command(given, node):
    types = topic_types(given['bag'])
    played = list(played_types(given['bag'], node))
    topics = ['--topics', *played] if len(played) < len(types) else []
    return [
        'ros2', 'bag', 'play', given['bag'],
        '--start-paused', '--disable-keyboard-controls', *without_progress_bar(),
        '--clock', given['clock'],
        '--rate', given['rate'],
        '--wait-for-all-acked', PLAYER_PATIENCE,
        '--qos-profile-overrides-path', quality_of_service(given, types),
        *topics,
    ]


def quality_of_service(given, types):
    """A file with the quality of service of the player: that of the bag, except where the node could miss messages."""
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

"""Maps the magnetic field while the robot drives: the node, and RViz if wanted."""

import os
from pathlib import Path
import sys

from ament_index_python.packages import PackageNotFoundError
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.launch_description_sources.python_launch_file_utilities import load_python_launch_file_as_module
from launch.logging import get_logger
from launch.substitutions import SubstitutionFailure
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import ExecutableInPackage
from launch_ros.utilities import make_namespace_absolute, prefix_namespace

LAUNCH_FOLDER = Path(__file__).resolve().parent
CONFIG_FOLDER = LAUNCH_FOLDER.parent / 'config'

arguments = load_python_launch_file_as_module(str(LAUNCH_FOLDER / 'arguments.py'))
ending = load_python_launch_file_as_module(str(LAUNCH_FOLDER / 'ending.py'))

PACKAGE = 'magmap'
NODE = 'magmap'

# Topics of the node that RViz shows, relative to the node.
SHOWN_TOPICS = ('mean', 'variance', 'cloud', 'inducing_points', 'path')

# Seconds that the node may take to complete its batch and save before it is killed.
SHUTDOWN_PATIENCE = '30'

ARGUMENTS = [
    DeclareLaunchArgument(
        'config', default_value='', description='TOML file with settings; what it leaves out keeps its default.'
    ),
    DeclareLaunchArgument(
        'params_file',
        default_value='',
        description='YAML file with ROS parameters: the same settings by their dotted names. It wins over config.',
    ),
    DeclareLaunchArgument('namespace', default_value='', description='Namespace of the node and of its relative topics.'),
    DeclareLaunchArgument(
        'use_sim_time', default_value='', description='Whether time comes from /clock: true or false. Empty means false.'
    ),
    DeclareLaunchArgument(
        'magnetometer_topic',
        default_value='imu/mag',
        description='Topic of the magnetometer (sensor_msgs/msg/MagneticField, in tesla): what imu/mag is remapped to.',
    ),
    DeclareLaunchArgument(
        'odometry_topic',
        default_value='odom',
        description='Topic of the odometry (nav_msgs/msg/Odometry): what odom is remapped to.',
    ),
    DeclareLaunchArgument(
        'map_frame', default_value='', description="Frame of the map. Empty means the odometry's, unless config names another."
    ),
    DeclareLaunchArgument(
        'pose_source',
        default_value='',
        description='Where poses come from: odometry, or transforms from map_frame to the sensor. Empty means as config says.',
    ),
    DeclareLaunchArgument(
        'reliability',
        default_value='',
        description='Reliability of the subscriptions: best_effort or reliable. Empty means as config says.',
    ),
    DeclareLaunchArgument(
        'map_folder', default_value='', description='Folder of saved maps. Empty means as config says, else ~/.ros/magmap.'
    ),
    DeclareLaunchArgument(
        'map_name', default_value='', description='Name of the map in this folder. Empty means as config says.'
    ),
    DeclareLaunchArgument(
        'load_at_start',
        default_value='',
        description='Whether the saved map is loaded, where there is one, and continued: true or false. Empty means as config '
        'says, else true.',
    ),
    DeclareLaunchArgument(
        'save_at_end',
        default_value='',
        description='Whether the map is saved when the node stops: true or false. Empty means as config says, else true.',
    ),
    DeclareLaunchArgument(
        'log_level',
        default_value='',
        description="The node's log level: debug, info, warn, error or fatal. Empty means info.",
    ),
    DeclareLaunchArgument('rviz', default_value='false', description='Whether RViz shows the map: true or false.'),
    DeclareLaunchArgument(
        'fixed_frame', default_value='', description="RViz's fixed frame. Empty means map_frame, and odom where that is empty."
    ),
]

# Arguments that are parameters of the node: the parameter's name and its type.
PARAMETERS = {
    'config': ('config', str),
    'use_sim_time': ('use_sim_time', bool),
    'map_frame': ('frames.map', str),
    'pose_source': ('frames.pose_source', str),
    'reliability': ('node.reliability', str),
    'map_folder': ('node.map_folder', str),
    'map_name': ('node.map_name', str),
    'load_at_start': ('node.load_at_start', bool),
    'save_at_end': ('node.save_at_end', bool),
}
PATHS = ('config', 'params_file', 'map_folder')
BOOLEANS = ('use_sim_time', 'load_at_start', 'save_at_end', 'rviz')
CHOICES = {'pose_source': ('odometry', 'transforms'), 'reliability': ('best_effort', 'reliable')}


def generate_launch_description():
    return description(__file__, ARGUMENTS, node_and_rviz)


def description(file, declared, actions):
    """A launch file with these arguments and actions, which are called with the context and an Ending."""

    def start(context):
        # An including launch file decides what happens when the node ends.
        watch = ending.Ending(is_whole=arguments.check_command_line(file, sys.argv, declared))
        return [*watch.handlers(), *actions(context, watch)]

    return LaunchDescription([*declared, OpaqueFunction(function=ending.rejecting(start))])


def node_and_rviz(context, watch, extra=None):
    """Starts them. `extra` holds parameters that are not arguments of this file."""
    given = checked(context, ARGUMENTS, PATHS, BOOLEANS)
    parameters = parameters_of(given, PARAMETERS)
    for name, value in (extra or {}).items():
        parameters[name] = ParameterValue(value, value_type=str)
    # Without exec_name, the name would be that of a prefix.
    node = Node(
        executable='magmap_node', name=NODE, exec_name='magmap_node', **node_options(context, given, parameters)
    )
    # Ours is relative to the namespace that a group of another launch file may have pushed.
    pushed = context.launch_configurations.get('ros_namespace', '')
    namespace = make_namespace_absolute(prefix_namespace(pushed, given['namespace'])) or '/'
    frame = given['fixed_frame'] or given['map_frame'] or 'odom'
    is_shown = given['rviz'] and has_rviz(context)
    viewer = [rviz(given, namespace, NODE, SHOWN_TOPICS, 'mapping.rviz', frame)] if is_shown else []
    return [*watch.essential(node, 'magmap_node'), *viewer]


def parameters_of(given, table):
    """The parameters of a node for the arguments that are not empty, by a table such as PARAMETERS."""
    return {
        name: ParameterValue(given[argument], value_type=str) if kind is str else arguments.boolean(argument, given[argument])
        for argument, (name, kind) in table.items()
        if given[argument]
    }


def node_options(context, given, parameters):
    """What all nodes of this package have in common."""
    return {
        'package': PACKAGE,
        'namespace': given['namespace'],
        'parameters': [given['params_file'], parameters] if given['params_file'] else [parameters],
        'remappings': [('imu/mag', given['magnetometer_topic']), ('odom', given['odometry_topic'])],
        'ros_arguments': ['--log-level', given['log_level']] if given['log_level'] else None,
        'output': 'screen',
        'sigterm_timeout': SHUTDOWN_PATIENCE,
        'sigkill_timeout': SHUTDOWN_PATIENCE,
        **ending.ended_with_launch(context, 'INT'),
    }


def checked(context, declared, paths, booleans):
    """The arguments, once they are valid: nothing has started yet."""
    given = {argument.name: context.launch_configurations[argument.name] for argument in declared}
    for path in paths:
        given[path] = str(Path(given[path]).expanduser()) if given[path] else ''
    # The node rejects a missing config, but would ignore a missing file of parameters.
    arguments.reject_missing_file(given, 'params_file')
    for argument in booleans:
        if given[argument]:
            arguments.boolean(argument, given[argument])
    for argument in CHOICES.keys() & given.keys():
        arguments.reject_other(given, argument, ('', *CHOICES[argument]))
    arguments.reject_unknown_log_level(given, 'log_level')
    given['rviz'] = arguments.boolean('rviz', given['rviz'])
    return given


def has_rviz(context):
    try:
        ExecutableInPackage(package='rviz2', executable='rviz2').perform(context)
    except (PackageNotFoundError, SubstitutionFailure):
        distribution = os.environ.get('ROS_DISTRO', 'humble')
        get_logger(PACKAGE).warning(
            f'rviz2 is not installed: continuing without it; install it with: sudo apt install ros-{distribution}-rviz2'
        )
        return False
    return True


def rviz(given, namespace, node, shown_topics, file, frame, relative_topics=()):
    """RViz with the topics of a node in this namespace instead of those in a file of ours."""

    def absolute(topic):
        return topic if topic.startswith('/') else f"{namespace.rstrip('/')}/{topic}"

    topics = [(f'/{node}/{topic}', absolute(f'{node}/{topic}')) for topic in shown_topics]
    topics += [(f'/{topic}', absolute(topic)) for topic in relative_topics]
    topics.append(('/odom', absolute(given['odometry_topic'])))
    return Node(
        package='rviz2',
        executable='rviz2',
        name='rviz2_magmap',
        arguments=[
            '--display-config', str(CONFIG_FOLDER / file),
            '--fixed-frame', frame,
        ],
        parameters=[{'use_sim_time': arguments.boolean('use_sim_time', given['use_sim_time'] or 'false')}],
        remappings=[(shown, actual) for shown, actual in topics if shown != actual],
    )

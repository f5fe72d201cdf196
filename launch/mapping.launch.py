"""Maps the magnetic field while the robot drives: the node, and RViz if wanted."""

from pathlib import Path

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.conditions import IfCondition
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.utilities import make_namespace_absolute, prefix_namespace

PACKAGE = 'magmap'
NODE = 'magmap'
CONFIG_FOLDER = Path(__file__).resolve().parent.parent / 'config'

# Topics of the node that RViz shows, relative to the node.
SHOWN_TOPICS = ('mean', 'variance', 'cloud', 'inducing_points', 'path')

# Seconds that the node may take to finish its batch and save before it is killed.
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
        'map_frame', default_value='', description="Frame of the map. Empty means the odometry's, unless config says other."
    ),
    DeclareLaunchArgument(
        'pose_source',
        default_value='',
        choices=['', 'odometry', 'transforms'],
        description='Where poses come from: odometry, or transforms from map_frame to the sensor. Empty means as config says.',
    ),
    DeclareLaunchArgument(
        'reliability',
        default_value='',
        choices=['', 'best_effort', 'reliable'],
        description='Reliability of the subscriptions. Empty means as config says.',
    ),
    DeclareLaunchArgument(
        'map_folder', default_value='', description='Folder of saved maps. Empty means as config says, else ~/.ros/magmap.'
    ),
    DeclareLaunchArgument(
        'load_at_start',
        default_value='',
        description='Whether the saved map is loaded and gone on with: true or false. Empty means as config says.',
    ),
    DeclareLaunchArgument(
        'save_at_end',
        default_value='',
        description='Whether the map is saved when the node stops: true or false. Empty means as config says.',
    ),
    DeclareLaunchArgument('log_level', default_value='', description="The node's log level, such as debug or warn."),
    DeclareLaunchArgument('rviz', default_value='false', description='Whether RViz shows the map: true or false.'),
    DeclareLaunchArgument(
        'fixed_frame', default_value='', description="RViz's fixed frame. Empty means map_frame, and odom where that is empty."
    ),
]

# Arguments that are parameters of the node, if they are given: the parameter's name and its type.
PARAMETERS = {
    'config': ('config', str),
    'use_sim_time': ('use_sim_time', bool),
    'map_frame': ('frames.map', str),
    'pose_source': ('frames.pose_source', str),
    'reliability': ('node.reliability', str),
    'map_folder': ('node.map_folder', str),
    'load_at_start': ('node.load_at_start', bool),
    'save_at_end': ('node.save_at_end', bool),
}
PATHS = ('config', 'params_file', 'map_folder')


def generate_launch_description():
    return LaunchDescription([*ARGUMENTS, OpaqueFunction(function=node_and_rviz)])


def node_and_rviz(context):
    given = {argument.name: context.launch_configurations[argument.name] for argument in ARGUMENTS}
    for path in PATHS:
        given[path] = str(Path(given[path]).expanduser()) if given[path] else ''
    parameters = {
        name: ParameterValue(given[argument], value_type=str) if kind is str else truth(argument, given[argument])
        for argument, (name, kind) in PARAMETERS.items()
        if given[argument]
    }
    node = Node(
        package=PACKAGE,
        executable='magmap_node',
        name=NODE,
        namespace=given['namespace'],
        parameters=[given['params_file'], parameters] if given['params_file'] else [parameters],
        remappings=[('imu/mag', given['magnetometer_topic']), ('odom', given['odometry_topic'])],
        ros_arguments=['--log-level', given['log_level']] if given['log_level'] else None,
        output='screen',
        sigterm_timeout=SHUTDOWN_PATIENCE,
        sigkill_timeout=SHUTDOWN_PATIENCE,
    )
    # A group of another launch file may have pushed a namespace that ours is relative to.
    pushed = context.launch_configurations.get('ros_namespace', '')
    namespace = make_namespace_absolute(prefix_namespace(pushed, given['namespace'])) or '/'
    return [node, rviz(given, namespace)]


def truth(argument, value):
    if value.lower() not in ('true', 'false'):
        raise RuntimeError(f"{argument}: expected true or false, found '{value}'")
    return value.lower() == 'true'


def rviz(given, namespace):
    """RViz with the topics of a node in this namespace in place of those that mapping.rviz names."""

    def absolute(topic):
        return topic if topic.startswith('/') else f"{namespace.rstrip('/')}/{topic}"

    topics = [(f'/{NODE}/{topic}', absolute(f'{NODE}/{topic}')) for topic in SHOWN_TOPICS]
    topics.append(('/odom', absolute(given['odometry_topic'])))
    return Node(
        package='rviz2',
        executable='rviz2',
        name='rviz2_magmap',
        arguments=[
            '--display-config', str(CONFIG_FOLDER / 'mapping.rviz'),
            '--fixed-frame', given['fixed_frame'] or given['map_frame'] or 'odom',
        ],
        parameters=[{'use_sim_time': truth('use_sim_time', given['use_sim_time'] or 'false')}],
        remappings=[(shown, actual) for shown, actual in topics if shown != actual],
        condition=IfCondition(LaunchConfiguration('rviz')),
    )

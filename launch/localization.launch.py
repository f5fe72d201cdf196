"""Finds the robot in a finished map of the magnetic field: the localizer, and RViz if wanted."""

from pathlib import Path
import sys

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.launch_description_sources.python_launch_file_utilities import load_python_launch_file_as_module
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.utilities import make_namespace_absolute, prefix_namespace

LAUNCH_FOLDER = Path(__file__).resolve().parent
CONFIG_FOLDER = LAUNCH_FOLDER.parent / 'config'

mapping = load_python_launch_file_as_module(str(LAUNCH_FOLDER / 'mapping.launch.py'))
arguments, ending = mapping.arguments, mapping.ending

NODE = 'magmap_localizer'

# Topics of the node that RViz shows, relative to the node.
SHOWN_TOPICS = ('map', 'particles', 'pose', 'path')

# Those of mapping.launch.py that mean the same.
SHARED = (
    'config',
    'params_file',
    'namespace',
    'use_sim_time',
    'magnetometer_topic',
    'odometry_topic',
    'reliability',
    'map_folder',
    'map_name',
    'log_level',
)

ARGUMENTS = [
    DeclareLaunchArgument(
        'map',
        default_value='',
        description='The map: a file that the mapper has saved, or the folder of a replay. Empty means map_name in map_folder.',
    ),
    DeclareLaunchArgument(
        'map_frame',
        default_value='',
        description="Frame of the map. Empty means as config says, else the map's own, or map where that is the odometry's.",
    ),
    DeclareLaunchArgument(
        'initial_pose',
        default_value='',
        description='Where the robot is at the start, as X,Y,YAW in metres and radians. Empty means the last pose it knew, else '
        'anywhere.',
    ),
    DeclareLaunchArgument(
        'tf_broadcast',
        default_value='',
        description='Whether the transform from the odometry to the map is published: true or false. Empty means as config says, '
        'else true.',
    ),
    DeclareLaunchArgument('rviz', default_value='false', description='Whether RViz shows the robot in the map: true or false.'),
    *[argument for argument in mapping.ARGUMENTS if argument.name in SHARED],
]

# Arguments that are parameters of the node: the parameter's name and its type.
PARAMETERS = {
    'map': ('map', str),
    'tf_broadcast': ('tf_broadcast', bool),
    **{name: parameter for name, parameter in mapping.PARAMETERS.items() if name in (*SHARED, 'map_frame')},
}
PATHS = ('config', 'params_file', 'map_folder', 'map')
BOOLEANS = ('use_sim_time', 'tf_broadcast', 'rviz')


def generate_launch_description():
    return LaunchDescription([*ARGUMENTS, OpaqueFunction(function=ending.rejecting(start))])


def start(context):
    # An including launch file decides what happens when the node ends.
    watch = ending.Ending(is_whole=arguments.check_command_line(__file__, sys.argv, ARGUMENTS))
    return [*watch.handlers(), *node_and_rviz(context, watch)]


def node_and_rviz(context, watch):
    given = mapping.checked(context, ARGUMENTS, PATHS, BOOLEANS)
    parameters = {**mapping.parameters_of(given, PARAMETERS), **initial_pose(given)}
    node = Node(
        executable='magmap_localizer',
        name=NODE,
        exec_name='magmap_localizer',
        **mapping.node_options(context, given, parameters),
    )
    pushed = context.launch_configurations.get('ros_namespace', '')
    namespace = make_namespace_absolute(prefix_namespace(pushed, given['namespace'])) or '/'
    frame = given['map_frame'] or 'map'
    viewer = []
    if given['rviz'] and mapping.has_rviz(context):
        viewer = [mapping.rviz(given, namespace, NODE, SHOWN_TOPICS, 'localization.rviz', frame, ['initialpose'])]
    return [*watch.essential(node, 'magmap_localizer'), *viewer]


def initial_pose(given):
    """The parameters of the pose at the start."""
    text = given['initial_pose']
    if not text:
        return {}
    try:
        x, y, yaw = map(float, text.split(','))
    except ValueError:
        raise RuntimeError(f"initial_pose: expected X,Y,YAW in metres and radians, such as 1.5,-2,1.57, found '{text}'") from None
    pose = {'initial_pose.x': x, 'initial_pose.y': y, 'initial_pose.yaw': yaw}
    return {'set_initial_pose': True, **{name: ParameterValue(value, value_type=float) for name, value in pose.items()}}

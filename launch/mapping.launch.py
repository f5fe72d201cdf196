"""Maps the magnetic field while the robot drives: the node, and RViz if wanted."""

from pathlib import Path

from launch.launch_description_sources.python_launch_file_utilities import load_python_launch_file_as_module

common = load_python_launch_file_as_module(str(Path(__file__).with_name('common.py')))
argument = common.argument

ARGUMENTS = [
    argument('config', 'TOML file with settings; what it leaves out keeps its default.'),
    argument('params_file', 'YAML file with ROS parameters: the same settings by their dotted names. It wins over config.'),
    argument('namespace', 'Namespace of the node and of its relative topics.'),
    argument('use_sim_time', 'Whether time comes from /clock. Empty means false.'),
    argument(
        'magnetometer_topic',
        'Topic of the magnetometer (sensor_msgs/msg/MagneticField, in tesla): what imu/mag is remapped to.',
        'imu/mag',
    ),
    argument('odometry_topic', 'Topic of the odometry (nav_msgs/msg/Odometry): what odom is remapped to.', 'odom'),
    argument('slam', 'Whether the field corrects the path. Empty means as config says, else false.'),
    argument('path_topic', 'Topic of the path with which another SLAM corrects the map. Empty means as config says.'),
    argument('path_type', 'Type of that topic: nav_msgs/msg/Path or slam_toolbox/msg/PoseGraph. Empty means as config says.'),
    argument('map_frame', "Frame of the map. Empty means the odometry's or, with slam or path_topic, map; unless config names another."),
    argument('pose_source', 'Where poses come from; transforms: from map_frame to the sensor. Empty means as config says.'),
    argument('reliability', 'Reliability of the subscriptions. Empty means as config says.'),
    argument('map_folder', 'Folder of saved maps. Empty means as config says, else ~/.ros/magmap.'),
    argument('map_name', 'Name of the map in this folder. Empty means as config says.'),
    argument('load_at_start', 'Whether the saved map is continued, where there is one. Empty means as config says, else true.'),
    argument('log_level', "The node's log level. Empty means info."),
    argument('rviz', 'Whether RViz shows the map.', 'false'),
    argument('fixed_frame', "RViz's fixed frame. Empty means map_frame, and where that is empty map with slam or path_topic, odom without."),
]

# Arguments that are parameters of the node.
PARAMETERS = {
    'config': 'config',
    'use_sim_time': 'use_sim_time',
    'slam': 'slam.enabled',
    'path_topic': 'slam.path_topic',
    'path_type': 'slam.path_type',
    'map_frame': 'frames.map',
    'pose_source': 'frames.pose_source',
    'reliability': 'node.reliability',
    **{name: f'node.{name}' for name in ('map_folder', 'map_name', 'load_at_start')},
}


def generate_launch_description():
    return common.description(__file__, ARGUMENTS, node_and_rviz)


def node_and_rviz(launch, **more):
    """Starts them; `more` holds parameters of the node that are not arguments."""
    is_corrected = launch.given['slam'] or launch.given['path_topic']
    shown, frame = ('slam.rviz', 'map') if is_corrected else ('mapping.rviz', 'odom')
    frame = launch.given['fixed_frame'] or launch.given['map_frame'] or frame
    return [*launch.node('magmap_node', PARAMETERS, **more), *launch.rviz(shown, frame)]

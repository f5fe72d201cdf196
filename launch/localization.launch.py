"""Finds the robot in a finished map of the magnetic field: the localizer, and RViz if wanted."""

from pathlib import Path

from launch.launch_description_sources.python_launch_file_utilities import load_python_launch_file_as_module

mapping = load_python_launch_file_as_module(str(Path(__file__).with_name('mapping.launch.py')))
argument = mapping.argument

# Those of mapping.launch.py that mean the same.
SHARED = (
    'config', 'params_file', 'namespace', 'use_sim_time', 'magnetometer_topic', 'odometry_topic', 'reliability', 'map_folder',
    'map_name', 'log_level',
)

ARGUMENTS = [
    argument('map', 'The map: a file that the mapper has saved, or the folder of a replay. Empty means map_name in map_folder.'),
    argument('map_frame', "Frame of the map. Empty means as config says, else the map's own; map where that is odometry's."),
    argument('initial_pose', 'Pose at the start: X,Y,YAW in metres and radians. Empty means the last one known, else anywhere.'),
    argument('tf_broadcast', 'Whether the transform from odometry to map is published. Empty means as config says, else true.'),
    argument('rviz', 'Whether RViz shows the robot in the map.', 'false'),
    *[argument for argument in mapping.ARGUMENTS if argument.name in SHARED],
]
PARAMETERS = {**mapping.PARAMETERS, 'map': 'map', 'tf_broadcast': 'tf_broadcast'}


def generate_launch_description():
    return mapping.common.description(__file__, ARGUMENTS, node_and_rviz)


def node_and_rviz(launch):
    node = launch.node('magmap_localizer', PARAMETERS, **initial_pose(launch.given['initial_pose']))
    return [*node, *launch.rviz('localization.rviz', launch.given['map_frame'] or 'map')]


def initial_pose(text):
    """The parameters of the pose at the start."""
    if not text:
        return {}
    try:
        x, y, yaw = map(float, text.split(','))
    except ValueError:
        raise RuntimeError(f"initial_pose: expected X,Y,YAW in metres and radians, such as 1.5,-2,1.57, found '{text}'") from None
    return {'set_initial_pose': True, 'initial_pose.x': x, 'initial_pose.y': y, 'initial_pose.yaw': yaw}

"""The launch files: how they end, what they reject, and what they pass on to the node."""

import os
from pathlib import Path
import re
import shutil
import signal
import subprocess

from ament_index_python.packages import PackageNotFoundError, get_package_prefix, get_package_share_directory
from diagnostic_msgs.msg import DiagnosticStatus
from launch.launch_description_sources.python_launch_file_utilities import load_python_launch_file_as_module
import pytest

from harness import drive, executable

LAUNCH_FOLDER = Path(get_package_share_directory('magmap')) / 'launch'

# Seconds that the start of everything may take on a busy machine, and the end of it.
LONG = 90.0

# What a node rejects.
BAD_CONFIG = 'selection.dela = 0.1\n'
WHY_BAD = 'unknown key selection.dela; did you mean selection.delta?'


def launch(session, file, *arguments):
    return session.run('launch', ['ros2', 'launch', 'magmap', file, *arguments])


def launch_file(session, name, body):
    """A launch file of somebody else that includes ours, where the body says MAPPING(arguments)."""
    path = session.folder / name
    path.write_text(f"""
from launch import LaunchDescription
from launch.actions import *
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration

def MAPPING(**arguments):
    source = PythonLaunchDescriptionSource({str(LAUNCH_FOLDER / 'mapping.launch.py')!r})
    return IncludeLaunchDescription(source, launch_arguments=arguments.items())

def fails(context):
    raise RuntimeError('this launch file is broken')

def generate_launch_description():
    return LaunchDescription({body})
""")
    return session.run('launch', ['ros2', 'launch', path])


def failed(process, timeout=LONG):
    """The last line of what a process says that must end with an error."""
    code = process.wait(timeout)
    assert code not in (0, None), f'expected an exit code that is not 0\n{process.log}'
    return process.log.splitlines()[-1]


def pid_of(process, name, session):
    """The number of a process that a launch has started."""
    found = lambda: re.search(rf'\[{name}-\d+\]: process started with pid \[(\d+)\]', process.log)  # noqa: E731
    session.wait(found, f'{name} to be started', LONG, lambda: process.log)
    return int(found()[1])


def is_running(pid):
    try:
        return b'magmap_node' in Path(f'/proc/{pid}/cmdline').read_bytes()
    except FileNotFoundError:
        return False


@pytest.fixture
def bag(tmp_path):
    bag = tmp_path / 'house'
    command = [executable('magmap'), 'simulate', '--out', bag, '--storage', 'sqlite3', '--duration', '20', '--size', '3x3']
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return bag


@pytest.fixture
def bad_config(tmp_path):
    path = tmp_path / 'bad.toml'
    path.write_text(BAD_CONFIG)
    return path


# ---- How they end ----


def test_a_node_that_rejects_its_settings_fails_the_launch_with_its_reason_last(session, bad_config):
    last = failed(launch(session, 'mapping.launch.py', f'config:={bad_config}'))
    assert 'magmap_node failed with exit code 2' in last and WHY_BAD in last, last


def test_a_node_that_rejects_its_settings_fails_a_replay_with_nothing_after_its_reason(session, bad_config, bag):
    replay = launch(session, 'replay.launch.py', f'bag:={bag}', f'config:={bad_config}', 'rviz:=false')
    last = failed(replay)
    assert 'magmap_node failed with exit code 2' in last and WHY_BAD in last, last
    assert 'Traceback' not in replay.log and 'KeyboardInterrupt' not in replay.log, replay.log


@pytest.mark.parametrize('file', ['mapping.launch.py', 'replay.launch.py'])
def test_a_node_that_is_killed_fails_the_launch(session, file, request):
    arguments = [f'bag:={request.getfixturevalue("bag")}', 'rviz:=false'] if file == 'replay.launch.py' else []
    process = launch(session, file, 'namespace:=house', *arguments)
    session.launched('/house/magmap', process).wait_diagnostics(lambda _: True, 'a report', LONG)
    os.kill(pid_of(process, 'magmap_node', session), signal.SIGKILL)
    assert failed(process) == 'magmap_node was ended by SIGKILL'


def test_a_map_that_is_not_saved_at_the_end_fails_the_launch(session):
    blocked = session.folder / 'blocked'
    blocked.write_text('a file where the folder should be')
    process = launch(session, 'mapping.launch.py', f'map_folder:={blocked}', 'reliability:=reliable')
    mapper = session.launched('/magmap', process)
    session.robot(mapper).drive(drive(7.0))
    process.send_signal(signal.SIGINT)
    last = failed(process)
    assert 'magmap_node failed with exit code 1' in last and str(blocked) in last, last


def test_a_bag_that_cannot_be_played_fails_the_launch(session, bag):
    # Whoever asks the player, the middleware or the bag: its words are the last ones.
    (file,) = bag.glob('*.db3')
    file.write_bytes(file.read_bytes()[:5000])
    last = failed(launch(session, 'replay.launch.py', f'bag:={bag}', 'rviz:=false', 'fixed_frame:=odom'))
    assert 'the bag could not be played: player failed with exit code' in last, last


def test_without_rviz_mapping_continues_and_one_line_says_how_to_install_it(session):
    try:
        get_package_prefix('rviz2')
    except PackageNotFoundError:
        pass
    else:
        pytest.skip('rviz2 is installed')
    process = launch(session, 'mapping.launch.py', 'rviz:=true')
    session.launched('/magmap', process).wait_diagnostics(lambda _: True, 'a report', LONG)
    (line,) = [line for line in process.log.splitlines() if 'rviz2' in line]
    assert line.startswith('[WARNING]') and 'rviz2 is not installed: continuing without it; install it with' in line
    assert process.stop() == 0, process.log


def test_a_launch_file_that_fails_after_ours_leaves_no_node_running(session):
    process = launch_file(session, 'robot.launch.py', '[MAPPING(), OpaqueFunction(function=fails)]')
    last = failed(process)
    assert 'this launch file is broken' in process.log, last
    assert not is_running(pid_of(process, 'magmap_node', session))
    # It may have been asked to end before it could hear it; on its own it never ends.
    assert 'process has finished cleanly' in process.log or 'process has died' in process.log, process.log


@pytest.mark.skipif(not shutil.which('setpriv'), reason='no setpriv')
@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGTERM])
def test_a_node_outlives_no_launch_that_is_killed(session, number):
    process = launch(session, 'mapping.launch.py')
    session.launched('/magmap', process).wait_diagnostics(lambda _: True, 'a report', LONG)
    pid = pid_of(process, 'magmap_node', session)
    assert is_running(pid)
    process.stop(number)
    session.wait(lambda: not is_running(pid), 'the end of the node')


def test_in_an_including_launch_file_the_node_fails_and_the_rest_continues(session, bad_config):
    body = f"[MAPPING(config={str(bad_config)!r}), ExecuteProcess(cmd=['sleep', '5'])]"
    process = launch_file(session, 'mapping.launch.py', body)
    code = process.wait(LONG)
    assert code == 1 and WHY_BAD in process.log, process.log
    assert re.search(r'\[sleep-\d+\]: process has finished cleanly', process.log), process.log


# ---- What they reject ----


@pytest.mark.parametrize(
    'argument, expected',
    [
        ('magnetometer_topc:=/imu/mag', 'unknown argument magnetometer_topc; did you mean magnetometer_topic?'),
        ('model.field:=vector', 'unknown argument model.field; settings are in a file: config:=FILE or params_file:=FILE'),
        ('colour:=red', 'unknown argument colour; expected one of config, params_file'),
        ('use_sim_time:=maybe', "use_sim_time: expected one of true, 1, false, 0, found 'maybe'"),
        ('load_at_start:=maybe', "load_at_start: expected one of true, 1, false, 0, found 'maybe'"),
        ('load_at_start:=1.5', "load_at_start: expected one of true, 1, false, 0, found '1.5'"),
        ('rviz:=perhaps', "rviz: expected one of true, 1, false, 0, found 'perhaps'"),
        ('log_level:=chatty', "log_level: expected one of debug, info, warn, error, fatal, found 'chatty'"),
        ('params_file:=/nowhere.yaml', "params_file: expected a file, found none at '/nowhere.yaml'"),
        ('pose_source:=gps', "pose_source: expected one of odometry, transforms, found 'gps'"),
        ('reliability:=perfect', "reliability: expected one of best_effort, reliable, found 'perfect'"),
    ],
    ids=lambda value: value.split(':=')[0] if ':=' in value else '',
)
def test_wrong_arguments_are_rejected_before_anything_starts(session, argument, expected):
    process = launch(session, 'mapping.launch.py', argument)
    assert failed(process).startswith(expected), process.log
    assert 'process started' not in process.log, process.log


@pytest.mark.parametrize(
    'argument, expected',
    [
        ('rat:=2', 'unknown argument rat; did you mean rate?'),
        ('map_fram:=map', 'unknown argument map_fram; did you mean map_frame?'),
        ('use_sim_time:=maybe', "use_sim_time: expected one of true, 1, false, 0, found 'maybe'"),
        ('use_sim_time:=false', "use_sim_time: expected true, because the node follows the bag's clock, found 'false'"),
        ('rate:=fast', "rate: expected a number above 0, found 'fast'"),
        ('rate:=-1', "rate: expected a number above 0, found '-1'"),
        ('clock:=0', "clock: expected a number above 0, found '0'"),
        ('reliability:=perfect', "reliability: expected one of best_effort, reliable, found 'perfect'"),
        ('exit:=perhaps', "exit: expected one of true, 1, false, 0, found 'perhaps'"),
        ('rviz:=perhaps', "rviz: expected one of true, 1, false, 0, found 'perhaps'"),
        ('namespace:=/', "namespace: expected one that nobody else uses, found '/'"),
    ],
    ids=lambda value: value.split(':=')[0] if ':=' in value else '',
)
def test_wrong_arguments_of_a_replay_are_rejected_before_anything_starts(session, bag, argument, expected):
    process = launch(session, 'replay.launch.py', f'bag:={bag}', argument)
    assert failed(process).startswith(expected), process.log
    assert 'process started' not in process.log, process.log


@pytest.mark.parametrize('arguments, found', [([], '(bag:=house), found none'), (['bag:=/nowhere'], 'found nothing at /nowhere')])
def test_a_replay_without_a_bag_is_rejected(session, arguments, found):
    last = failed(launch(session, 'replay.launch.py', *arguments))
    assert last.startswith('bag: expected a rosbag2 folder, or an .mcap or .db3 file') and last.endswith(found), last


def test_a_wrong_argument_in_an_including_launch_file_ends_what_it_has_started(session):
    body = "[ExecuteProcess(cmd=['sleep', '300']), MAPPING(rviz='perhaps')]"
    process = launch_file(session, 'robot.launch.py', body)
    failed(process)
    assert "\nrviz: expected one of true, 1, false, 0, found 'perhaps'\n" in process.log, process.log
    assert re.search(r'\[sleep-\d+\]: process has (died|finished)', process.log), process.log


def test_a_folder_without_metadata_is_rejected_with_alternatives(session, bag):
    (bag / 'metadata.yaml').unlink()
    (file,) = bag.glob('*.db3')
    last = failed(launch(session, 'replay.launch.py', f'bag:={bag}'))
    assert f'expected metadata.yaml in the folder {bag}, found none' in last, last
    assert f'bag:={file}' in last and f'ros2 bag reindex {bag}' in last, last


def test_an_including_launch_file_may_have_arguments_of_its_own(session):
    body = "[DeclareLaunchArgument('colour', default_value='red'), MAPPING(namespace='robot')]"
    process = launch_file(session, 'mapping.launch.py', body)
    session.launched('/robot/magmap', process).wait_diagnostics(lambda _: True, 'a report', LONG)
    assert process.stop() == 0, process.log


# ---- Replays ----


def test_the_end_of_the_bag_is_reported_and_the_silence_after_it_is_no_fault(session, bag):
    parameters = session.folder / 'parameters.yaml'
    parameters.write_text('/**: {ros__parameters: {node.complaint_period: 1.0}}')
    arguments = ['rviz:=false', 'rate:=10', f'params_file:={parameters}', f'map_folder:={session.folder / "maps"}']
    replay = launch(session, 'replay.launch.py', f'bag:={bag}', 'namespace:=house', *arguments)
    mapper = session.launched('/house/magmap', replay)
    mapper.wait_log('the bag is over and the map flushed: Ctrl-C ends the node', LONG)
    mapper.wait_log('simulated time has stopped at', LONG)
    report = mapper.wait_diagnostics(lambda report: 'simulated time has stopped' in report.message, 'the end of the bag')
    assert report.level == DiagnosticStatus.OK
    # Several checks later.
    mapper.wait_diagnostics(lambda later: later.number > report.number + 5, 'reports')
    # Once while the player waited for the node, where that took a second, and once now.
    assert replay.log.count('simulated time has stopped') <= 2, replay.log
    _, over = re.split(r'\[player-\d+\]: process has finished cleanly', replay.log)
    assert '[WARN]' not in over, over
    assert replay.stop() == 0, replay.log


def test_a_replay_has_a_map_of_its_own_for_each_recording(session, bag):
    replay = launch(session, 'replay.launch.py', f'bag:={bag}', 'namespace:=house', 'rviz:=false')
    mapper = session.launched('/house/magmap', replay)
    mapper.wait_diagnostics(lambda _: True, 'a report', LONG)
    name, folder, recording, loads = (
        mapper.parameter(f'node.{key}') for key in ('map_name', 'map_folder', 'recording', 'load_at_start')
    )
    assert replay.stop() == 0, replay.log
    assert folder == str(Path(os.environ['ROS_HOME']) / 'magmap' / 'replays')
    title, fingerprint = recording.split('#')
    assert title == 'house' and re.fullmatch('[0-9a-f]{64}', fingerprint)
    assert name == f'house-{fingerprint[:8]}' and loads is False


def test_the_fingerprint_identifies_a_recording_and_its_copies(bag, tmp_path):
    bags = load_python_launch_file_as_module(str(LAUNCH_FOLDER / 'bag.py'))

    def fingerprint(path):
        return bags.fingerprint_of(str(path))

    copy = tmp_path / 'elsewhere' / 'copy'
    shutil.copytree(bag, copy)
    (file,) = copy.glob('*.db3')
    assert fingerprint(copy) == fingerprint(bag) == fingerprint(file)
    other = tmp_path / 'other'
    command = [executable('magmap'), 'simulate', '--out', other, '--storage', 'sqlite3', '--duration', '21', '--size', '3x3']
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    assert fingerprint(other) != fingerprint(bag)


def test_topics_of_a_node_in_a_bag_are_neither_chosen_nor_played():
    bags = load_python_launch_file_as_module(str(LAUNCH_FOLDER / 'bag.py'))
    sensor = 'sensor_msgs/msg/MagneticField'
    recorded = {'/imu/mag': sensor, '/robot/magmap/bias': sensor, '/clock': 'rosgraph_msgs/msg/Clock'}
    played = bags.played_types(recorded)
    assert played == {'/imu/mag': sensor}
    assert bags.chosen_topic('house', played, 'magnetometer_topic', '') == '/imu/mag'
    # Topics of others are like any others.
    played = bags.played_types({**recorded, '/rear/mag': sensor})
    with pytest.raises(RuntimeError, match=r'found several; choose with magnetometer_topic:=/imu/mag\|/rear/mag'):
        bags.chosen_topic('house', played, 'magnetometer_topic', '')
    assert bags.chosen_topic('house', played, 'magnetometer_topic', 'rear/mag') == '/rear/mag'


@pytest.mark.parametrize(
    'name, expected', [('house', 'house'), ('.hidden', 'hidden'), ('my house/2', '2'), ('a b (ä)', 'a_b____'), ('...', 'bag')]
)
def test_the_name_of_a_bag_becomes_a_valid_name_of_a_map(tmp_path, name, expected):
    bags = load_python_launch_file_as_module(str(LAUNCH_FOLDER / 'bag.py'))
    if name == '...':
        assert bags.name_of(str(tmp_path / '....mcap')) == expected
        return
    (tmp_path / name).mkdir(parents=True)
    assert bags.name_of(f'{tmp_path / name}/') == expected
    assert bags.name_of(str(tmp_path / f'{name}.mcap')) == expected


def test_rviz_of_a_replay_shows_the_replay(session, bag, tmp_path, monkeypatch):
    stand_in = tmp_path / 'stand_in'
    index, programs = stand_in / 'share/ament_index/resource_index/packages', stand_in / 'lib/rviz2'
    index.mkdir(parents=True)
    programs.mkdir(parents=True)
    (index / 'rviz2').touch()
    program = programs / 'rviz2'
    program.write_text(RVIZ)
    program.chmod(0o755)
    monkeypatch.setenv('AMENT_PREFIX_PATH', os.pathsep.join([str(stand_in), os.environ['AMENT_PREFIX_PATH']]))
    # Not into a file.
    monkeypatch.setenv('OVERRIDE_LAUNCH_PROCESS_OUTPUT', 'screen')
    replay = launch(session, 'replay.launch.py', f'bag:={bag}', 'namespace:=house', 'rate:=4')
    mapper = session.launched('/house/magmap', replay)
    topics = ['magmap/variance', 'magmap/cloud', 'magmap/inducing_points', 'magmap/path', 'odom', 'tf', 'tf_static']
    for topic in [*topics, 'clock']:
        mapper.wait_log(f'heard /house/{topic}\n', LONG)
    assert 'fixed frame odom' in replay.log, replay.log
    assert replay.stop() == 0, replay.log


# What RViz does with its file and with the names of topics, without a window.
RVIZ = """#!/usr/bin/python3
import importlib, sys
import rclpy
import yaml

TYPES = {
    'Map': 'nav_msgs.msg.OccupancyGrid', 'PointCloud2': 'sensor_msgs.msg.PointCloud2', 'Path': 'nav_msgs.msg.Path',
    'MarkerArray': 'visualization_msgs.msg.MarkerArray', 'Odometry': 'nav_msgs.msg.Odometry',
}
words = sys.argv
config = yaml.safe_load(open(words[words.index('--display-config') + 1]))
print('fixed frame', words[words.index('--fixed-frame') + 1], flush=True)
rclpy.init()
node = rclpy.create_node('rviz')
displays = [display for display in config['Visualization Manager']['Displays'] if display['Enabled'] and 'Topic' in display]
shown = [(display['Topic']['Value'], TYPES[display['Class'].split('/')[1]]) for display in displays]
shown += [('/tf', 'tf2_msgs.msg.TFMessage'), ('/tf_static', 'tf2_msgs.msg.TFMessage'), ('/clock', 'rosgraph_msgs.msg.Clock')]
heard = set()
for topic, kind in shown:
    module, _, name = kind.rpartition('.')
    kind = getattr(importlib.import_module(module), name)
    late = rclpy.qos.QoSProfile(depth=100, durability=rclpy.qos.DurabilityPolicy.TRANSIENT_LOCAL)
    quality = late if topic == '/tf_static' else rclpy.qos.qos_profile_sensor_data
    name = node.resolve_topic_name(topic)

    def hear(_, name=name):
        if name not in heard:
            heard.add(name)
            print('heard', name, flush=True)

    node.create_subscription(kind, topic, hear, quality)
try:
    rclpy.spin(node)
except (KeyboardInterrupt, rclpy.executors.ExternalShutdownException):
    pass
"""


# ---- Parts ----


def test_only_the_launch_file_on_the_command_line_checks_its_arguments(tmp_path):
    common = load_python_launch_file_as_module(str(LAUNCH_FOLDER / 'common.py'))
    ours = LAUNCH_FOLDER / 'mapping.launch.py'
    assert common.is_on_command_line(ours, ['ros2', 'launch', 'magmap', 'mapping.launch.py', '--debug', 'rviz:=true'])
    assert common.is_on_command_line(ours, ['ros2', 'launch', str(ours), 'rviz:=true'])
    assert not common.is_on_command_line(ours, ['ros2', 'launch', 'robot', 'mapping.launch.py'])
    theirs = tmp_path / 'mapping.launch.py'
    theirs.write_text('')
    assert not common.is_on_command_line(ours, ['ros2', 'launch', str(theirs)])
    assert not common.is_on_command_line(ours, ['pytest', f'file:={ours}'])


def test_the_reason_is_found_in_the_log_of_a_process():
    common = load_python_launch_file_as_module(str(LAUNCH_FOLDER / 'common.py'))

    def reason(*said):
        return common.last_error([text.encode() for text in said])

    error = '[ERROR] [17.2] [magmap]: '
    assert reason('[INFO] [17.1] [magmap]: hello\n', f'{error}a.toml: 2 prob', 'lems\n  line 1: x\n  line 2: y\n') == (
        'a.toml: 2 problems; line 1: x; line 2: y'
    )
    assert reason(f'{error}first\n{error}last\n[INFO] [17.3] [magmap]: mapped 0\n') == 'last'
    assert reason(f'\x1b[31m{error}red\x1b[0m\n') == 'red'
    assert reason('usage: x\n', 'magmap: wrong arguments: y\n\n') == 'magmap: wrong arguments: y'
    assert reason('[INFO] [17.1] [magmap]: hello\n', '[WARN] [17.2] [magmap]: late\n') == 'late'
    assert reason() == ''


# ---- The node ----


@pytest.mark.parametrize(
    'arguments, expected',
    [
        (['--log-level', 'chatty'], '--log-level: expected one of debug, info, warn, error, fatal, found "chatty"'),
        (['--log-level', 'magmap:=chatty'], 'found "magmap:=chatty"'),
        (['-r', 'nonsense'], 'nonsense'),
        (['--params-file', '/nowhere.yaml'], '/nowhere.yaml'),
    ],
    ids=lambda value: value[0].strip('-') if isinstance(value, list) else '',
)
def test_wrong_arguments_for_ros_are_rejected_without_a_panic(session, arguments, expected):
    process = session.run('node', [executable('magmap_node'), '--ros-args', *arguments])
    assert process.wait() == 2, process.log
    last = process.log.splitlines()[-1]
    assert last.startswith('magmap: wrong arguments: ') and expected in last, process.log
    assert 'panicked' not in process.log, process.log


def test_log_levels_in_any_case_are_accepted(session):
    process = session.run('node', [executable('magmap_node'), '--ros-args', '--log-level', 'WARN', '--log-level', 'rcl:=error'])
    session.launched('/magmap', process).wait_diagnostics(lambda _: True, 'a report')
    assert process.stop() == 0, process.log


def test_help_into_a_closed_pipe_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run([executable('magmap_node'), '--help'], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, '')

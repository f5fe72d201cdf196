"""Plays a whole bag into a node of its own, under names that nobody else uses; at the end, the node flushes."""

import asyncio
import atexit
import contextlib
import json
import math
import os
from pathlib import Path
import tempfile
import uuid

from launch import Event, EventHandler
from launch.actions import ExecuteProcess, GroupAction, LogInfo, OpaqueCoroutine, RegisterEventHandler
from launch.launch_description_sources.python_launch_file_utilities import load_python_launch_file_as_module
from launch.logging import get_logger
from launch_ros.actions import PushRosNamespace, SetRemap
from launch_ros.ros_adapters import get_ros_node
from rclpy.utilities import get_rmw_implementation_identifier
from rosbag2_interfaces.srv import Resume
import rosbag2_py
from std_srvs.srv import Trigger

bag = load_python_launch_file_as_module(str(Path(__file__).with_name('bag.py')))
mapping = load_python_launch_file_as_module(str(Path(__file__).with_name('mapping.launch.py')))
argument = mapping.argument

# Absolute names that the node and RViz use, and the bag's own clock.
SHARED_NAMES = ('/tf', '/tf_static', '/clock', '/diagnostics')

# Quality of service of the player where the node would miss messages otherwise, with a queue for a node that is behind.
RELIABLE = {'reliability': 'reliable', 'history': 'keep_last', 'depth': 1000}

# Milliseconds that the player waits at the end until the node has received everything.
PLAYER_PATIENCE = '10000'

# Seconds until node and player count as missing.
PATIENCE = 60.0

# Seconds for player and node to discover each other too, after launch has seen both. With Fast DDS a participant that missed the
# first announcements of another one hears the next after 3 s.
SETTLING = {'rmw_fastrtps_cpp': 3.5}
SETTLING_OTHERWISE = 1.0

ARGUMENTS = [
    argument('bag', f'The bag: {bag.A_BAG}. It must be given.'),
    argument('namespace', 'Namespace of everything in this replay, which nobody else may use. Empty means a new one.'),
    argument('use_sim_time', 'Must be true: the time is that of the bag.', 'true'),
    argument('rate', 'How many times faster than recorded it is played.', '1.0'),
    argument('clock', 'How often the time is published, per second.', '100.0'),
    argument('exit', 'Whether everything stops when the bag is over and the map flushed.', 'false'),
    argument('rviz', 'Whether RViz shows the map.', 'true'),
    argument('reliability', 'Reliability of the subscriptions; reliable loses nothing, as the player is reliable.', 'reliable'),
    *[argument(name, f'Topic in the bag. Empty means the only one of type {kind}.') for name, kind in bag.MAPPED.items()],
    argument('map_folder', 'Folder of saved maps. Empty means the folder replays in ~/.ros/magmap, apart from the maps of robots.'),
    argument('map_name', 'Name of the map in this folder. Empty means one for this recording, whatever the name of the bag.'),
    argument('load_at_start', 'Whether the saved map is continued, where there is one.', 'false'),
]
OWN = [argument.name for argument in ARGUMENTS]
ARGUMENTS += [argument for argument in mapping.ARGUMENTS if argument.name not in OWN]


def generate_launch_description():
    return mapping.common.description(__file__, ARGUMENTS, replay)


def replay(launch):
    given = launch.given
    # Without its player the node is of no use.
    launch.is_whole = True
    if not given['use_sim_time']:
        raise RuntimeError("use_sim_time: expected true, because the node follows the bag's clock, found 'false'")
    for name in ('rate', 'clock'):
        if not is_positive(given[name]):
            raise RuntimeError(f"{name}: expected a number above 0, found '{given[name]}'")
    bag.reject_other(given['bag'])
    played = bag.played_types(bag.recorded_types(given['bag']))
    topics = {name: bag.chosen_topic(given['bag'], played, name, given[name]) for name in bag.MAPPED}
    if given['rviz'] and not given['map_frame'] and not given['slam'] and not given['path_topic']:
        given['fixed_frame'] = given['fixed_frame'] or bag.first_frame(given['bag'], topics['odometry_topic'])
    name, fingerprint = bag.name_of(given['bag']), bag.fingerprint_of(given['bag'])
    given['map_folder'] = given['map_folder'] or str(Path(os.environ.get('ROS_HOME') or Path.home() / '.ros') / 'magmap/replays')
    given['map_name'] = given['map_name'] or f'{name}-{fingerprint[:8]}'
    alone = '/' + (given['namespace'] or f'replay_{uuid.uuid4().hex[:8]}').strip('/')
    if alone == '/':
        raise RuntimeError("namespace: expected one that nobody else uses, found '/'")

    # All arguments are valid: from here on processes start.
    renamed = {topic: f"{alone}/{topic.lstrip('/')}" for topic in (*played, *SHARED_NAMES)}
    heard = {name: renamed[topic] for name, topic in topics.items()}
    if given['path_topic']:
        heard['path_topic'] = f"{alone}/{given['path_topic'].lstrip('/')}"
    given.update(heard, namespace='')
    # Topics that the settings name are those of a robot.
    parameters = {'node.recording': f'{name}#{fingerprint}', 'topics.magnetometer': '', 'topics.odometry': ''}
    return [
        LogInfo(msg=f"replaying {given['bag']} in {alone}: every topic, also tf and clock, is there, such as {alone}/magmap/mean"),
        GroupAction([
            PushRosNamespace(alone),
            *[SetRemap(name, renamed[name]) for name in SHARED_NAMES],
            *mapping.node_and_rviz(launch, **parameters),
        ]),
        *play(launch, alone, heard.values(), play_command(given, alone, renamed, played, topics.values())),
    ]


def is_positive(text):
    with contextlib.suppress(ValueError):
        return 0.0 < float(text) < math.inf
    return False


def play_command(given, alone, renamed, played, topics):
    """Plays these topics of the bag, renamed, so that the node misses nothing on those that are mapped."""
    quality = {**dict.fromkeys(topics, RELIABLE), '/tf_static': {**RELIABLE, 'durability': 'transient_local'}}
    file = tempfile.NamedTemporaryFile('w', prefix='magmap-replay-', suffix='.yaml')
    atexit.register(file.close)
    # JSON is YAML.
    json.dump(quality, file)
    file.flush()
    # From Kilted on the player draws a progress bar, which moves the cursor over what the other processes have said.
    has_bar = hasattr(rosbag2_py.PlayOptions, 'progress_bar_update_rate')
    return [
        'ros2', 'bag', 'play', given['bag'],
        '--start-paused', '--disable-keyboard-controls', *(['--progress-bar-update-rate', '0'] if has_bar else []),
        '--clock', given['clock'],
        '--rate', given['rate'],
        '--wait-for-all-acked', PLAYER_PATIENCE,
        '--qos-profile-overrides-path', file.name,
        '--remap', f'__ns:={alone}', *[f'{topic}:={name}' for topic, name in renamed.items()],
        '--topics', *played,
    ]


def play(launch, alone, topics, command):
    """Starts the player once the node has subscribed, resumes it once the two have met, and flushes the node at the end."""
    subscribed, over = Event(), asyncio.Event()
    player = ExecuteProcess(cmd=command, name='player', output='screen', prefix=launch.prefix)
    player = launch.essential(player, 'the bag could not be played: player', then=over.set)

    async def conduct(context):
        ros = get_ros_node(context)
        for topic in topics:
            await until(lambda: ros.count_subscribers(topic), f'{topic}: expected the node as a subscriber')
            if ros.count_publishers(topic):
                raise RuntimeError(f'{topic}: expected no publisher yet, found one: is another replay in this namespace?')
        # Earlier, a node that rejects its parameters would interrupt the player's start.
        await context.emit_event(subscribed)
        for topic in topics:
            await until(lambda: ros.count_publishers(topic), f'{topic}: expected the player as a publisher')
        await asyncio.sleep(SETTLING.get(get_rmw_implementation_identifier(), SETTLING_OTHERWISE))
        await answer(ros, Resume, f'{alone}/rosbag2_player/resume')
        await over.wait()
        flushed = await answer(ros, Trigger, f'{alone}/magmap/flush')
        if not flushed.success:
            raise RuntimeError(f'the map could not be flushed: {flushed.message}')
        done = 'the bag is over and the map flushed'
        if launch.given['exit']:
            get_logger('launch').info(done)
            launch.end(done)
        else:
            get_logger('launch').info(f'{done}: Ctrl-C ends the node; exit:=true would have done that now')

    return [
        RegisterEventHandler(EventHandler(matcher=lambda event: event is subscribed, entities=player)),
        OpaqueCoroutine(coroutine=launch.failing(conduct)),
    ]


async def until(holds, expected, patience=PATIENCE):
    deadline = asyncio.get_running_loop().time() + patience
    while not holds():
        if asyncio.get_running_loop().time() > deadline:
            raise RuntimeError(f'{expected} within {patience:g} s, found none')
        await asyncio.sleep(0.1)


async def answer(ros, kind, service):
    client = ros.create_client(kind, service)
    await until(client.service_is_ready, f'expected the service {service}')
    answered = client.call_async(kind.Request())
    await until(answered.done, f'expected an answer of {service}', math.inf)
    return answered.result()


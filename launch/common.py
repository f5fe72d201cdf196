"""What the launch files share: arguments that are checked, the node, RViz, and how a launch ends.

A launch fails when its node fails, with the reason as its last line, and leaves nothing running.
"""

import asyncio
from collections import deque
import contextlib
import difflib
from itertools import pairwise
import os
from pathlib import Path
import re
import shutil
import signal
import sys

from ament_index_python.packages import PackageNotFoundError, get_package_prefix
from launch import Event, EventHandler, LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction, RegisterEventHandler, Shutdown
from launch.event_handlers import OnProcessExit, OnProcessIO
from launch.events import Shutdown as ShutdownEvent
from launch.logging import get_logger
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue

PACKAGE = 'magmap'
CONFIG_FOLDER = Path(__file__).resolve().parent.parent / 'config'

# Configurations of launch itself and launch_ros, whatever the launch file declares.
OF_LAUNCH = ('emulate_tty', 'launch-prefix', 'launch-prefix-filter', 'ros_namespace', 'sigkill_timeout', 'sigterm_timeout')

# Arguments of which only these values are valid, or none where that is the default.
BOOLEAN = {'true': True, '1': True, 'false': False, '0': False}
CHOICES = {
    **dict.fromkeys(('use_sim_time', 'slam', 'load_at_start', 'tf_broadcast', 'rviz', 'exit'), BOOLEAN),
    'pose_source': ('odometry', 'transforms'),
    'path_type': ('path', 'pose_graph'),
    'reliability': ('best_effort', 'reliable'),
    'log_level': ('debug', 'info', 'warn', 'error', 'fatal'),
}
PATHS = ('config', 'params_file', 'map_folder', 'map', 'bag')

# Seconds that the node may take to complete its batch and save before it is killed.
SHUTDOWN_PATIENCE = '30'

# A line of the log of ROS: severity, time, logger, message.
LOG_LINE = re.compile(r'^\[(DEBUG|INFO|WARN|ERROR|FATAL)\] \[[^]]*\] \[[^]]*\]: ', re.MULTILINE)
COLOUR = re.compile(r'\x1b\[[0-9;]*m')


def argument(name, description, default=''):
    choices = f" One of {', '.join(CHOICES[name])}." if name in CHOICES else ''
    return DeclareLaunchArgument(name, default_value=default, description=f'{description}{choices}')


def description(file, arguments, actions):
    """The description of a launch file; `actions` is called with a `Launch` once its arguments are valid."""

    def start(context):
        launch = Launch(context, is_whole=is_on_command_line(file, sys.argv))
        try:
            launch.given = checked(context, [argument.name for argument in arguments], launch.is_whole)
            return actions(launch)
        # Launch itself would put words of its own before the reason, and leave running what other launch files have started.
        except RuntimeError as error:
            launch.fail(str(error))
            return [Shutdown(reason=str(error))]

    return LaunchDescription([*arguments, OpaqueFunction(function=start)])


def is_on_command_line(file, words):
    """Whether this launch file is the one that is launched, and not one that another includes."""
    path = Path(file).resolve()
    return any(pair == (PACKAGE, path.name) or Path(pair[1]).resolve() == path for pair in pairwise(words))


def checked(context, known, is_whole):
    """The arguments with these names. Included launch files get those of the whole launch: what they do not know, another may."""
    for name in (word.split(':=')[0] for word in context.argv if is_whole):
        if name not in known and name not in OF_LAUNCH:
            nearest = difflib.get_close_matches(name, known, n=1)
            advice = f'did you mean {nearest[0]}?' if nearest else f'expected one of {", ".join(known)}'
            in_file = 'settings are in a file: config:=FILE or params_file:=FILE'
            raise RuntimeError(f'unknown argument {name}; {in_file if "." in name else advice}')
    given = {name: context.launch_configurations[name] for name in known}
    for name, value in given.items():
        choices = CHOICES.get(name, {value: value})
        if value and value.lower() not in map(str.lower, choices):
            raise RuntimeError(f"{name}: expected one of {', '.join(choices)}, found '{value}'")
        if value and choices is BOOLEAN:
            given[name] = BOOLEAN[value.lower()]
        if value and name in PATHS:
            given[name] = str(Path(value).expanduser())
    # The node rejects a missing config, but launch would leave out a missing file of parameters.
    if given['params_file'] and not Path(given['params_file']).is_file():
        raise RuntimeError(f"params_file: expected a file, found none at '{given['params_file']}'")
    return given


class Launch:
    """A launch file that starts: its arguments, and the processes that it has started."""

    def __init__(self, context, is_whole):
        self.context, self.is_whole, self.is_ending = context, is_whole, False
        self.given, self.processes = {}, []
        # When launch itself is killed, the system interrupts its processes. A prefix of ours would replace the user's.
        can_prefix = shutil.which('setpriv') and 'launch-prefix' not in context.launch_configurations
        self.prefix = 'setpriv --pdeathsig INT' if can_prefix else None

    def node(self, executable, parameters, **more):
        """The node with these arguments as parameters (argument: parameter), and with more. The launch ends with it."""
        values = {parameters[name]: value for name, value in self.given.items() if name in parameters and value != ''} | more
        # Text that looks like a number is text.
        values = {name: ParameterValue(value, value_type=type(value)) for name, value in values.items()}
        node = Node(
            package=PACKAGE,
            executable=executable,
            name=executable.removesuffix('_node'),
            # Otherwise it would be that of the prefix.
            exec_name=executable,
            namespace=self.given['namespace'],
            parameters=[*filter(None, [self.given['params_file']]), values],
            remappings=[('imu/mag', self.given['magnetometer_topic']), ('odom', self.given['odometry_topic'])],
            ros_arguments=['--log-level', self.given['log_level']] if self.given['log_level'] else None,
            output='screen',
            sigterm_timeout=SHUTDOWN_PATIENCE,
            sigkill_timeout=SHUTDOWN_PATIENCE,
            prefix=self.prefix,
        )
        return self.essential(node, executable)

    def rviz(self, file, fixed_frame):
        """RViz with a file of ours, whose topics are relative to the namespace; nothing where it is not wanted or not installed."""
        try:
            if not self.given['rviz'] or not get_package_prefix('rviz2'):
                return []
        except PackageNotFoundError:
            package = f"ros-{os.environ.get('ROS_DISTRO', 'humble')}-rviz2"
            get_logger(PACKAGE).warning(
                f'rviz2 is not installed: continuing without it; install it with: sudo apt install {package}'
            )
            return []
        viewer = Node(
            package='rviz2',
            executable='rviz2',
            name='rviz2_magmap',
            exec_name='rviz2',
            namespace=self.given['namespace'],
            arguments=['--display-config', str(CONFIG_FOLDER / file), '--fixed-frame', fixed_frame],
            # On the clock of the machine: when the clock of a bag stops, RViz keeps old clouds and draws new ones over them.
            parameters=[{'use_sim_time': False}],
            remappings=[('odom', self.given['odometry_topic'])],
            prefix=self.prefix,
        )
        return self.started(viewer)

    def started(self, process):
        """Starts a process. Launch waits for its end, and does not forget it when another launch file fails later."""
        self.processes.append(process)

        def wait(context):
            # There is no future during a shutdown.
            if end := process.get_asyncio_future():
                context.add_completion_future(end)

        return [process, OpaqueFunction(function=wait)]

    def essential(self, process, name, then=None):
        """Starts a process with which the launch ends, unless it succeeds and `then` is given, which is called instead."""
        said = deque(maxlen=50)

        def ended(event, context):
            # Only the node has something to do in a shutdown that may fail.
            if event.returncode != 0 and not (then and context.is_shutdown):
                # When it is killed it cannot say why.
                self.fail(f'{name} {how_ended(event.returncode)}', () if event.returncode == -signal.SIGKILL else said)
            elif then:
                return then()
            self.end(f'{name} has ended')

        listen = OnProcessIO(target_action=process, on_stderr=lambda event: said.append(event.text))
        end = OnProcessExit(target_action=process, on_exit=ended)
        return [RegisterEventHandler(listen), RegisterEventHandler(end), *self.started(process)]

    def failing(self, coroutine):
        """The coroutine of an action that ends the launch when it fails, and is no failure when the launch ends before it."""

        async def call(context):
            with contextlib.suppress(asyncio.CancelledError):
                try:
                    await coroutine(context)
                except RuntimeError as error:
                    self.fail(str(error))
                    self.end(str(error))

        return call

    def end(self, reason):
        """Ends everything, unless another launch file has included this one: it decides what happens when the node ends."""
        if self.is_whole and not self.is_ending and not self.context.is_shutdown:
            self.is_ending = True
            self.context.emit_event_sync(ShutdownEvent(reason=reason))

    def fail(self, reason, said=()):
        """Makes the launch end with an exit code that is not 0; its last line is the reason, with the last error that was said."""
        last = Event()

        def report(context):
            # Only now: what a process says last may arrive after its end.
            context.asyncio_loop.call_exception_handler({'message': ': '.join(filter(None, [reason, last_error(said)]))})

        reporting = OpaqueFunction(function=report)
        self.context.register_event_handler(EventHandler(matcher=lambda event: event is last, entities=reporting))

        async def wait():
            await asyncio.gather(*[end for process in self.processes if (end := process.get_asyncio_future())])
            # Behind everything that the processes have said.
            await self.context.emit_event(last)

        self.context.add_completion_future(self.context.asyncio_loop.create_task(wait()))


def how_ended(returncode):
    return f'failed with exit code {returncode}' if returncode > 0 else f'was ended by {signal.Signals(-returncode).name}'


def last_error(said):
    """The last error in what a process has said, with its further lines, or else the last line, as one line."""
    first, *log = LOG_LINE.split(COLOUR.sub('', b''.join(said).decode(errors='replace')))
    errors = [message for severity, message in zip(log[::2], log[1::2]) if severity in ('ERROR', 'FATAL')]
    lines = [line.strip() for line in (errors or log or [first])[-1].splitlines() if line.strip()]
    return '; '.join(lines if errors else lines[-1:])

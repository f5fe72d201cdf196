"""What the tests of the node are made of: processes with their logs, an observer of topics and services, and a robot.

Everything a test starts ends with it, and whatever it waits for is awaited: when that does not come, the failure says what was
seen instead, and the logs of the processes are printed.
"""

from dataclasses import dataclass, replace
import math
import os
from pathlib import Path
import signal
import socket
import subprocess
import threading
import time

from ament_index_python.packages import get_package_prefix
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import Point, Quaternion, TransformStamped
from nav_msgs.msg import OccupancyGrid, Odometry, Path as PathMessage
import numpy as np
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import DescribeParameters, GetParameters, ListParameters, SetParameters
import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import MagneticField, PointCloud2
from std_srvs.srv import Trigger
from tf2_msgs.msg import TFMessage
from visualization_msgs.msg import MarkerArray

from magmap.msg import FieldMap
from magmap.srv import QueryField

# Seconds until something that must come counts as missing; a busy machine takes its time.
PATIENCE = 30.0

# Steps of a drive that are sent before the node is asked how far it is: less than its subscriptions hold.
CHUNK = 100

RELIABLE = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)
BEST_EFFORT = QoSProfile(depth=1000, reliability=ReliabilityPolicy.BEST_EFFORT)
LATCHED = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)
VOLATILE = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.VOLATILE)

MAPS = {
    'mean': OccupancyGrid,
    'variance': OccupancyGrid,
    'field': FieldMap,
    'cloud': PointCloud2,
    'vectors': MarkerArray,
    'bias': MagneticField,
    'inducing_points': MarkerArray,
    'path': PathMessage,
}

MICROTESLA = 1e-6
NANOSECONDS = 1_000_000_000

# When the robot's drives start, in nanoseconds, and how long a lap takes, in seconds.
START = 1_700_000_000 * NANOSECONDS
LAP = 14.0


HERE = Path(__file__).resolve().parent

# Domains above this use ports that the operating system gives to others.
DOMAINS = 100


def isolate():
    """Gives this process, and those it starts, a domain of their own on this machine alone, and a SIGINT that is heard."""
    # What a shell starts in the background ignores SIGINT, and all that it starts in turn; ros2 launch then does not hear it either.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ['ROS_DOMAIN_ID'] = str(free_domain())
    os.environ['CYCLONEDDS_URI'] = (HERE / 'cyclonedds.xml').as_uri()
    os.environ['RCUTILS_COLORIZED_OUTPUT'] = '0'


def free_domain():
    """A domain without participants, beginning with one that depends on the process."""
    for offset in range(DOMAINS):
        domain = 1 + (os.getpid() + offset) % DOMAINS
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as first_participant:
            try:
                first_participant.bind(('127.0.0.1', 7400 + 250 * domain + 10))
            except OSError:
                continue
            return domain
    raise RuntimeError('every ROS domain is taken')


def executable(name):
    return str(Path(get_package_prefix('magmap')) / 'lib' / 'magmap' / name)


class Process:
    """A process of its own group whose output goes to a file."""

    def __init__(self, name, command, folder):
        self.name = name
        self.command = [str(word) for word in command]
        self._path = Path(folder) / f'{name}.log'
        with open(self._path, 'wb') as log:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def pid(self):
        return self._process.pid

    @property
    def log(self):
        return self._path.read_text(errors='replace')

    @property
    def returncode(self):
        return self._process.poll()

    def send_signal(self, number):
        self._process.send_signal(number)

    def wait(self, timeout=PATIENCE):
        """The exit code."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f'{self.name}: expected its end within {timeout:g} s, it still runs') from None

    def stop(self, number=signal.SIGINT):
        """Asks it to end; its exit code."""
        self.send_signal(number)
        return self.wait()

    def close(self):
        """Ends whatever is left of it and of what it started."""
        if self.returncode is None:
            self.send_signal(signal.SIGINT)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()


class Collector:
    """The messages of a topic, in their order."""

    def __init__(self, session, topic):
        self._session = session
        self.topic = topic
        self.messages = []

    def add(self, message):
        self.messages.append(message)
        self._session.wake()

    @property
    def last(self):
        return self.messages[-1] if self.messages else None

    def wait(self, condition=lambda message: True, what='a message', timeout=PATIENCE):
        """The newest message, once it is as it should be."""
        expected = f'{self.topic}: expected {what}'
        self._session.wait(lambda: bool(self.messages) and condition(self.last), expected, timeout, self._seen)
        return self.last

    def _seen(self):
        return f'{len(self.messages)} messages'


class Session:
    """A participant of the tests' own, with an executor in the background, and the processes of a test."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.processes = []
        self._news = threading.Condition()
        self.context = Context()
        rclpy.init(args=[], context=self.context, signal_handler_options=SignalHandlerOptions.NO)
        self.ros = rclpy.create_node('magmap_tests', context=self.context, start_parameter_services=False)
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.ros)
        self._clients = {}
        self.diagnostics = {}
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self.ros.create_subscription(DiagnosticArray, '/diagnostics', self._diagnose, RELIABLE)
        self._thread.start()

    def _spin(self):
        try:
            self._executor.spin()
        except rclpy.executors.ExternalShutdownException:
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.close()
        self._executor.shutdown()
        self._thread.join(PATIENCE)
        self.ros.destroy_node()
        self.context.try_shutdown()
        self.print_logs()

    def print_logs(self):
        """What pytest shows of a test that failed."""
        for process in self.processes:
            print(f'---- {process.name}: {" ".join(process.command)}\n{process.log}---- exit code {process.returncode}')
        for name, status in self.diagnostics.items():
            print(f'---- last diagnostics of {name}: {status.message}\n{status.values}')

    def wake(self):
        with self._news:
            self._news.notify_all()

    def wait(self, condition, expected, timeout=PATIENCE, seen=lambda: 'nothing of the kind'):
        """Returns once the condition holds; fails when it does not in time."""
        deadline = time.monotonic() + timeout
        with self._news:
            while not condition():
                if time.monotonic() > deadline:
                    raise AssertionError(f'{expected} within {timeout:g} s, found {seen()}')
                # Logs and the graph change without telling.
                self._news.wait(0.05)

    def run(self, name, command):
        process = Process(name, command, self.folder)
        self.processes.append(process)
        return process

    def collect(self, kind, topic, quality=LATCHED):
        collector = Collector(self, topic)
        collector.subscription = self.ros.create_subscription(kind, topic, collector.add, quality)
        return collector

    def publisher(self, kind, topic, quality=RELIABLE):
        return self.ros.create_publisher(kind, topic, quality)

    def call(self, kind, service, request=None, timeout=PATIENCE):
        """The answer of a service."""
        if service not in self._clients:
            self._clients[service] = self.ros.create_client(kind, service)
        client = self._clients[service]
        if not client.wait_for_service(timeout):
            raise AssertionError(f'{service}: expected this service within {timeout:g} s, found none')
        future = client.call_async(request or kind.Request())
        future.add_done_callback(lambda _: self.wake())
        self.wait(future.done, f'{service}: expected an answer', timeout)
        return future.result()

    def broadcast_fixed(self, *transforms):
        """Publishes transforms that hold at all times."""
        publisher = self.publisher(TFMessage, '/tf_static', replace_depth(LATCHED, 100))
        publisher.publish(TFMessage(transforms=list(transforms)))

    def _diagnose(self, message):
        for status in message.status:
            before = self.diagnostics.get(status.name)
            number = before.number + 1 if before else 1
            self.diagnostics[status.name] = Diagnostics(number, status, message.header.stamp)
        self.wake()

    def mapper(self, parameters=None, **options):
        """A running node."""
        return Mapper(self, parameters or {}, **options)

    def launched(self, name, process):
        """A node of this full name that a launch file has started; in a replay, diagnostics are in its namespace as well."""
        namespace, _, _ = name.rpartition('/')
        if namespace:
            self.ros.create_subscription(DiagnosticArray, f'{namespace}/diagnostics', self._diagnose, RELIABLE)
        return Mapper.attached(self, name, process)

    def robot(self, *mappers, **options):
        """A robot that these nodes listen to."""
        return Robot(self, mappers, **options)


def replace_depth(quality, depth):
    return QoSProfile(depth=depth, reliability=quality.reliability, durability=quality.durability)


class Diagnostics:
    """A report on `/diagnostics`, the first of which has the number 1."""

    def __init__(self, number, status, stamp):
        self.number = number
        self.level = status.level
        self.message = status.message
        self.stamp = stamp
        self.values = {pair.key: pair.value for pair in status.values}

    def count(self, key):
        return int(self.values[key])

    def refused(self):
        """The counts of all reasons that happened."""
        counts = {key.removeprefix('rejected: '): int(value) for key, value in self.values.items() if key.startswith('rejected: ')}
        return {reason: count for reason, count in counts.items() if count}


def refused_readings(counts):
    """The number of rejected readings, given the counts by reason."""
    poses = ('pose_not_finite', 'pose_stamp_backwards', 'pose_stamp_repeated', 'pose_jump', 'pose_without_transform')
    return sum(count for reason, count in counts.items() if reason not in poses)


class Mapper:
    """The node, as a user starts it and as others see it."""

    # Reliable subscriptions lose nothing; batches that are never merged make the same map every time.
    FOR_TESTS = {
        'node.reliability': 'reliable',
        'node.diagnostics_rate': 20.0,
        'node.map_rate': 10.0,
        'node.marker_rate': 10.0,
        'node.complaint_period': 1.0,
        'mapping.max_merged': 1,
        'raster.resolution': 0.1,
    }

    def __init__(self, session, parameters, name='magmap', namespace='', remappings=None, defaults=FOR_TESTS):
        self._session = session
        self.name = f'{namespace}/{name}'
        arguments = ['--ros-args']
        # Reports of an earlier node with this name are not its own.
        session.diagnostics.pop(self._status_name, None)
        # Nodes that run at the same time need maps with different names.
        title = self.name.strip('/').replace('/', '_')
        own = {'node.map_name': title} if title != 'magmap' else {}
        given = {**defaults, 'node.map_folder': session.folder / 'maps', **own, **parameters}
        for key, value in given.items():
            arguments += ['-p', f'{key}:={as_yaml(value)}']
        rules = dict(remappings or {})
        if namespace:
            rules['__ns'] = namespace
        if name != 'magmap':
            rules['__node'] = name
        for source, target in rules.items():
            arguments += ['-r', f'{source}:={target}']
        self.process = session.run(f'{title}_{len(session.processes)}', [executable('magmap_node'), *arguments])

    @classmethod
    def attached(cls, session, name, process):
        """A node of this full name, which this process has started."""
        mapper = cls.__new__(cls)
        mapper._session, mapper.name, mapper.process = session, name, process
        return mapper

    def watch(self, topic, quality=LATCHED):
        """Collects one of the maps: mean, variance, field, cloud, vectors, bias, inducing_points or path."""
        return self._session.collect(MAPS[topic], f'{self.name}/{topic}', quality)

    @property
    def _status_name(self):
        return f"{self.name.strip('/')}: mapping"

    @property
    def diagnostics(self):
        """The newest report."""
        return self._session.diagnostics.get(self._status_name)

    def wait_diagnostics(self, condition, what, timeout=PATIENCE):
        """The newest report, once it is as it should be."""

        def seen():
            report = self.diagnostics
            return f'"{report.message}", {report.values}' if report else f'no report; the log:\n{self.process.log}'

        def holds():
            self.assert_alive()
            return self.diagnostics is not None and condition(self.diagnostics)

        self._session.wait(holds, f'diagnostics of {self.name}: expected {what}', timeout, seen)
        return self.diagnostics

    def assert_alive(self):
        code = self.process.returncode
        assert code is None, f'{self.name} ended with exit code {code}:\n{self.process.log}'

    def wait_log(self, text, timeout=PATIENCE):
        """Returns once the log holds a text."""
        self._session.wait(
            lambda: text in self.process.log,
            f'log of {self.name}: expected "{text}"',
            timeout,
            lambda: f'the log\n{self.process.log}',
        )

    def ask(self, service):
        """Calls one of the services that take no arguments: success and message."""
        answer = self._session.call(Trigger, f'{self.name}/{service}')
        return answer.success, answer.message

    def do(self, service):
        """The same, when it must succeed: its message."""
        success, message = self.ask(service)
        assert success, f'{self.name}/{service} failed: {message}'
        return message

    def query(self, points):
        """The answer at points of two or three coordinates."""
        request = QueryField.Request(points=[Point(**dict(zip('xyz', map(float, point)))) for point in points])
        return self._session.call(QueryField, f'{self.name}/query', request)

    def fresh_diagnostics(self):
        """A report that was made after this call."""
        # One may be in transit.
        wanted = (self.diagnostics.number if self.diagnostics else 0) + 2
        return self.wait_diagnostics(lambda report: report.number >= wanted, 'a new report')

    def finish(self, field):
        """Flushes; the map (of the collector `field`) with everything in it."""
        self.do('flush')
        # It was sent before the answer to the flush, and arrives before what is sent later.
        self.fresh_diagnostics()
        return field.wait(what='a map')

    def list_parameters(self):
        return list(self._session.call(ListParameters, f'{self.name}/list_parameters').result.names)

    def describe_parameters(self, names):
        request = DescribeParameters.Request(names=names)
        return self._session.call(DescribeParameters, f'{self.name}/describe_parameters', request).descriptors

    def parameter(self, name):
        answer = self._session.call(GetParameters, f'{self.name}/get_parameters', GetParameters.Request(names=[name]))
        return from_parameter(answer.values[0])

    def set_parameter(self, name, value):
        """Whether it was set, and why not."""
        request = SetParameters.Request(parameters=[Parameter(name=name, value=to_parameter(value))])
        result = self._session.call(SetParameters, f'{self.name}/set_parameters', request).results[0]
        return result.successful, result.reason


def as_yaml(value):
    if isinstance(value, bool):
        return str(value).lower()
    return list(map(float, value)) if isinstance(value, (tuple, list)) else value


def to_parameter(value):
    if isinstance(value, bool):
        return ParameterValue(type=ParameterType.PARAMETER_BOOL, bool_value=value)
    if isinstance(value, int):
        return ParameterValue(type=ParameterType.PARAMETER_INTEGER, integer_value=value)
    if isinstance(value, float):
        return ParameterValue(type=ParameterType.PARAMETER_DOUBLE, double_value=value)
    return ParameterValue(type=ParameterType.PARAMETER_STRING, string_value=value)


def from_parameter(value):
    return {
        ParameterType.PARAMETER_NOT_SET: None,
        ParameterType.PARAMETER_BOOL: value.bool_value,
        ParameterType.PARAMETER_INTEGER: value.integer_value,
        ParameterType.PARAMETER_DOUBLE: value.double_value,
        ParameterType.PARAMETER_STRING: value.string_value,
        ParameterType.PARAMETER_DOUBLE_ARRAY: list(value.double_array_value),
    }[value.type]


# ---- The robot ----


def field_at(x, y):
    """The field of the tests' world along its axes, in tesla: smooth, and between 30 and 70 microtesla strong."""
    axes = (18.0 + 8.0 * np.sin(3.1 * x), 4.0 + 6.0 * np.cos(2.6 * y), -42.0 + 9.0 * np.sin(2.4 * x + 1.7 * y))
    return MICROTESLA * np.stack(np.broadcast_arrays(*axes), axis=-1)


def strength_at(x, y):
    return np.linalg.norm(field_at(x, y), axis=-1)


def harmonic_field_at(x, y, z=0.0):
    """The field of another world, in tesla, which is a magnetic one: without curl and divergence, and weaker above."""
    axes = [18.0, 4.0, -42.0]
    for strength, (across, up), phase in [(9.0, (2.2, 0.4), 0.3), (8.0, (-0.7, 2.0), 1.1), (6.0, (1.6, 1.9), 2.0)]:
        size = math.hypot(across, up)
        wave, amplitude = across * x + up * y + phase, strength * np.exp(-size * z)
        parts = (across / size * np.sin(wave), up / size * np.sin(wave), np.cos(wave))
        axes = [axis + amplitude * part for axis, part in zip(axes, parts)]
    return MICROTESLA * np.stack(np.broadcast_arrays(*axes), axis=-1)


@dataclass
class Drive:
    """What a robot's sensors say, step by step: a pose and a reading each.

    Stamps are in nanoseconds, poses are x, y and heading in the odometry's frame, readings are in tesla along the sensor's axes.
    """

    pose_stamps: np.ndarray
    poses: np.ndarray
    reading_stamps: np.ndarray
    readings: np.ndarray

    def __len__(self):
        return len(self.pose_stamps)

    def __getitem__(self, part):
        return Drive(self.pose_stamps[part], self.poses[part], self.reading_stamps[part], self.readings[part])

    def later(self, seconds):
        """The same drive at another time."""
        shift = round(seconds * NANOSECONDS)
        return replace(self, pose_stamps=self.pose_stamps + shift, reading_stamps=self.reading_stamps + shift)


def drive(seconds=14.0, rate=50.0, centre=0.0, mount=(0.0, 0.0, 0.0), origin=(0.0, 0.0, 0.0), field=field_at):
    """A figure of eight, 2.4 m by 2.4 m, around x = `centre`, y = 0, a lap of which takes 14 s.

    `mount` is the sensor's x, y and heading on the body, `origin` the odometry's frame in the world, likewise.
    """
    time_of = np.arange(round(seconds * rate)) / rate
    angle = 2 * math.pi / LAP * time_of
    x, y = 1.2 * np.sin(angle), 1.2 * np.sin(2 * angle)
    poses = np.stack([centre + x, y, np.arctan2(2 * np.cos(2 * angle), np.cos(angle))], axis=1)
    sensor = compose(compose(np.asarray(origin), poses), np.asarray(mount))
    stamps = START + np.round(time_of * NANOSECONDS).astype(np.int64)
    return Drive(stamps, poses, stamps, turned(field(sensor[:, 0], sensor[:, 1]), -sensor[:, 2]))


def compose(outer, inner):
    """The pose (x, y, heading) of `inner`, given in `outer`, in the frame of `outer`."""
    x, y, heading = np.moveaxis(outer, -1, 0)
    moved_x = x + np.cos(heading) * inner[..., 0] - np.sin(heading) * inner[..., 1]
    moved_y = y + np.sin(heading) * inner[..., 0] + np.cos(heading) * inner[..., 1]
    return np.stack([moved_x, moved_y, heading + inner[..., 2]], axis=-1)


def turned(vectors, angle):
    x, y, z = vectors.T
    return np.stack([np.cos(angle) * x - np.sin(angle) * y, np.sin(angle) * x + np.cos(angle) * y, z], axis=1)


class Robot:
    """Sends drives to nodes, no faster than they take them, so that nothing is lost."""

    def __init__(
        self,
        session,
        mappers,
        magnetometer='/imu/mag',
        odometry='/odom',
        frame='odom',
        body='base_link',
        sensor='base_link',
        quality=RELIABLE,
        transforms=False,
        start=(0.0, 0.0, math.atan2(2, 1)),
    ):
        """A robot that stands at `start`. With `transforms`, each pose is also sent on `/tf`, before the odometry."""
        self._session = session
        self._mappers = mappers
        self.frame, self.body, self.sensor = frame, body, sensor
        # The odometry's publisher is the last to be found: when its messages arrive, the others' do.
        self._transforms = session.publisher(TFMessage, '/tf', RELIABLE) if transforms else None
        self._readings = session.publisher(MagneticField, magnetometer, quality)
        self._poses = session.publisher(Odometry, odometry, quality)
        self.sent_readings = 0
        self._meet(start)

    def _meet(self, start):
        """Stands still and sends odometry until every node receives it."""
        publishers = [publisher for publisher in (self._transforms, self._readings, self._poses) if publisher]
        self._session.wait(
            lambda: all(publisher.get_subscription_count() >= len(self._mappers) for publisher in publishers),
            f'{len(self._mappers)} nodes that listen to the robot',
            seen=lambda: {publisher.topic: publisher.get_subscription_count() for publisher in publishers},
        )
        began = time.monotonic()
        last = None

        def is_heard():
            nonlocal last
            # In real time, however often this is asked: a node may be slow to hear.
            stamp = START - 60 * NANOSECONDS + round(20 * (time.monotonic() - began)) * NANOSECONDS // 20
            if stamp != last:
                self.send_pose(stamp, start)
                last = stamp
            reports = [mapper.diagnostics for mapper in self._mappers]
            return all(report and report.values['rate of odometry'] != '0.0 Hz' for report in reports)

        self._session.wait(is_heard, 'nodes that hear the odometry')

    def drive(self, course):
        """Sends a drive, and waits until all nodes have taken it in."""
        for first in range(0, len(course), CHUNK):
            self.send(course[first : first + CHUNK])
            self.wait_received()
        return self

    def send(self, course, rate=math.inf, is_over=lambda: False):
        """Sends a drive at this many steps per second, or what is not over of it."""
        for pose_stamp, pose, reading_stamp, reading in zip(
            course.pose_stamps, course.poses, course.reading_stamps, course.readings
        ):
            if is_over():
                return
            self.send_pose(int(pose_stamp), pose)
            self.send_reading(int(reading_stamp), reading)
            if rate < math.inf:
                time.sleep(1.0 / rate)

    def turn_to(self, *mappers):
        """Continues with other nodes, whose counts continue those of the previous ones."""
        self._mappers = mappers
        last = self._last_pose

        def is_heard():
            # Nodes that received it before reject the same pose.
            self.send_pose(*last)
            reports = [mapper.diagnostics for mapper in mappers]
            return all(report and report.values['rate of odometry'] != '0.0 Hz' for report in reports)

        self._session.wait(is_heard, 'nodes that hear the odometry')

    def wait_received(self):
        for mapper in self._mappers:
            mapper.wait_diagnostics(
                lambda report: report.count('readings') >= self.sent_readings and report.count('backlog') == 0,
                f'{self.sent_readings} readings received and no backlog',
            )

    def send_pose(self, stamp, pose):
        self._last_pose = (stamp, pose)
        message = Odometry(child_frame_id=self.body)
        message.header.stamp, message.header.frame_id = to_time(stamp), self.frame
        x, y, heading = map(float, pose)
        message.pose.pose.position.x, message.pose.pose.position.y = x, y
        message.pose.pose.orientation = to_quaternion(heading)
        if self._transforms:
            self.send_transform(transform(self.frame, self.body, pose, stamp))
        self._poses.publish(message)

    def send_transform(self, *transforms):
        self._transforms.publish(TFMessage(transforms=list(transforms)))

    def send_reading(self, stamp, reading):
        message = MagneticField()
        message.header.stamp, message.header.frame_id = to_time(stamp), self.sensor
        axes = message.magnetic_field
        axes.x, axes.y, axes.z = map(float, reading)
        self._readings.publish(message)
        self.sent_readings += 1


def to_time(nanoseconds):
    seconds, rest = divmod(nanoseconds, NANOSECONDS)
    return Time(sec=seconds, nanosec=rest)


def to_nanoseconds(stamp):
    return stamp.sec * NANOSECONDS + stamp.nanosec


def to_quaternion(heading):
    return Quaternion(z=math.sin(heading / 2), w=math.cos(heading / 2))


def transform(parent, child, pose, stamp=0, z=0.0):
    """The transform of `child`, at a pose (x, y, heading) and a height, in `parent`."""
    message = TransformStamped(child_frame_id=child)
    message.header.stamp, message.header.frame_id = to_time(int(stamp)), parent
    translation = message.transform.translation
    translation.x, translation.y, translation.z = float(pose[0]), float(pose[1]), float(z)
    message.transform.rotation = to_quaternion(float(pose[2]))
    return message


# ---- Maps ----


def geometry_of(info):
    """Everything that says which cells a map has."""
    return info.width, info.height, info.resolution, info.origin.position.x, info.origin.position.y


def centres_of(info):
    """x and y of the cells' centres, in the order of the cells."""
    columns, rows = np.meshgrid(np.arange(info.width), np.arange(info.height))
    origin = info.origin.position
    # The message has the side of a cell in single precision only.
    side = round(float(info.resolution), 6)
    return origin.x + (columns.ravel() + 0.5) * side, origin.y + (rows.ravel() + 0.5) * side


def occupancies_of(values, low, high):
    """What occupancy grids hold of these values: 0 at `low`, 100 at `high`, clamped, halves away from zero, -1 for unknown."""
    values = np.asarray(values, dtype=np.float64)
    share = (values - low) / ((high - low) / 100.0)
    rounded = np.copysign(np.floor(np.abs(share) + 0.5), share)
    return np.where(np.isnan(values), -1, np.clip(np.nan_to_num(rounded), 0, 100)).astype(np.int8)


def deviation_from_truth(field, strength=strength_at):
    """Root mean square of the mean minus the truth in cells that the map knows well, in microtesla, and their number."""
    mean, deviation = np.asarray(field.mean), np.asarray(field.standard_deviation)
    known = np.nan_to_num(deviation, nan=np.inf) < 1.5 * MICROTESLA
    x, y = centres_of(field.info)
    errors = (mean - strength(x, y))[known] / MICROTESLA
    return float(np.sqrt(np.mean(errors**2))), int(known.sum())

"""Measures the installed node for docs/speed.md: CPU and memory, latency, and the largest rate held without loss.

    python3 tests/ros/measure.py [--seconds 60] [--only load latency rate]

A synthetic robot drives through a room of 6 m by 6 m at about half a metre per second, in real time; readings and odometry are
sent with sensor QoS at the same rate, and mean and variance are watched as RViz watches them. Run it with the release build on an
idle machine: what else runs there is in the figures, and the load is printed with them.
"""

import argparse
import os
from pathlib import Path
import struct
import tempfile
import time

from nav_msgs.msg import Odometry
import numpy as np
from rclpy.serialization import serialize_message
from sensor_msgs.msg import MagneticField

from harness import BEST_EFFORT, NANOSECONDS, Session, field_at, isolate, to_nanoseconds

# The field of the room is not a magnetic one: it has no axes that could be mapped.
STRENGTHS = {'model.field': 'strength'}

# Seconds between two wake-ups of the publisher at rates above what one message per wake-up can reach.
TICK = 0.005

# Rates tried for the largest one, in readings and poses per second each, and seconds that each has to be held.
STEPS = (500, 1000, 2000, 3000, 4000, 6000, 8000, 12000, 16000, 24000, 32000)
STEP_SECONDS = 10.0

# Share of a rate that the publisher has to reach for the step to say something about the node.
REACHED = 0.98


class RawRobot:
    """Publishes serialized messages of which only stamps and numbers are replaced: cheap enough for high rates."""

    def __init__(self, session, mapper):
        self._mapper = mapper
        self._readings = session.publisher(MagneticField, '/imu/mag', BEST_EFFORT)
        self._poses = session.publisher(Odometry, '/odom', BEST_EFFORT)
        reading, pose = MagneticField(), Odometry(child_frame_id='base_link')
        reading.header.frame_id, pose.header.frame_id = 'base_link', 'odom'
        self._reading, self._field_offset = template(reading, strings=['base_link'])
        self._pose, self._position_offset = template(pose, strings=['odom', 'base_link'])
        # Orientation: x, y, z are 0 in the template, and so is w.
        struct.pack_into('<d', self._pose, self._position_offset + 6 * 8, 1.0)
        self.sent = 0
        for publisher in (self._readings, self._poses):
            session.wait(lambda: publisher.get_subscription_count() > 0, f'a subscriber of {publisher.topic}')
        # Both sides have to have found each other, and only the node knows whether it has.
        time.sleep(2.0)

    def drive(self, seconds, rate):
        """Sends both at this rate, in real time. Returns the rate that was reached."""
        count = round(seconds * rate)
        time_of = np.arange(count) / rate
        x, y = 3.0 * np.sin(0.17 * time_of), 3.0 * np.sin(0.23 * time_of + 1.0)
        fields = field_at(x, y)
        started, first = time.monotonic(), time.time_ns()
        done = 0
        while done < count:
            due = min(count, int((time.monotonic() - started) * rate) + 1)
            for index in range(done, due):
                # A stamp is the moment of publication, so that latencies can be told from it.
                stamp = max(time.time_ns(), first + 1)
                first = stamp
                self._send(stamp, x[index], y[index], fields[index])
            done = due
            next_due = started + done / rate
            time.sleep(max(0.0, max(next_due - time.monotonic(), TICK if rate > 1.0 / TICK else 0.0)))
        self.sent += count
        return count / (time.monotonic() - started)

    def _send(self, stamp, x, y, field):
        seconds_and_rest = divmod(stamp, NANOSECONDS)
        struct.pack_into('<iI', self._pose, 4, *seconds_and_rest)
        struct.pack_into('<dd', self._pose, self._position_offset, x, y)
        self._poses.publish(bytes(self._pose))
        struct.pack_into('<iI', self._reading, 4, *seconds_and_rest)
        struct.pack_into('<ddd', self._reading, self._field_offset, *field)
        self._readings.publish(bytes(self._reading))


def template(message, strings):
    """The message in CDR, and where the first number after its stamp and these strings is."""
    data = bytearray(serialize_message(message))
    offset = 8
    for string in strings:
        offset = -(-offset // 4) * 4 + 4 + len(string) + 1
    # Behind the encapsulation's four bytes, doubles are aligned to eight.
    return data, 4 + -(-offset // 8) * 8


class Usage:
    """CPU time and memory of a process."""

    def __init__(self, pid):
        self._pid = pid
        self._since, self._used = time.monotonic(), self._cpu_seconds()

    def _cpu_seconds(self):
        fields = Path(f'/proc/{self._pid}/stat').read_text().rsplit(')', 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')

    def share(self):
        """Share of one core since this object was made."""
        return (self._cpu_seconds() - self._used) / (time.monotonic() - self._since)

    def memory(self):
        """Resident memory and its maximum, in megabytes."""
        lines = Path(f'/proc/{self._pid}/status').read_text().splitlines()
        values = dict(line.split(':', 1) for line in lines)
        return [int(values[key].split()[0]) / 1024 for key in ('VmRSS', 'VmHWM')]


def in_session(measurement):
    """Gives a measurement a session of its own."""

    def run(*arguments):
        with tempfile.TemporaryDirectory(prefix='magmap-measure-') as folder:
            os.environ['ROS_LOG_DIR'] = folder
            session = Session(folder)
            # The log matters only when something fails.
            session.print_logs = lambda: None
            with session:
                measurement(session, *arguments)

    return run


@in_session
def measure_load(session, rate, seconds):
    mapper = session.mapper(defaults=STRENGTHS)
    watched = [mapper.watch(name) for name in ('mean', 'variance')]
    robot = RawRobot(session, mapper)
    usage = Usage(mapper.process.pid)
    reached = robot.drive(seconds, rate)
    share, (memory, peak) = usage.share(), usage.memory()
    report = mapper.fresh_diagnostics()
    print(
        f'load at {rate} Hz (reached {reached:.1f}): {100 * share:.1f} % of one core, {memory:.0f} MB resident '
        f'(at most {peak:.0f}); {seconds:g} s, {report.values["travelled"]}, '
        f'{report.values.get("inducing points")} inducing points, {len(watched[0].messages)} maps, '
        f'lost {report.values["readings lost"]}',
        flush=True,
    )


@in_session
def measure_latency(session, rate, seconds):
    settings = {'node.map_rate': 20.0, 'batch.max_path': 0.25}
    mapper = session.mapper(settings, defaults=STRENGTHS)
    maps = mapper.watch('mean')
    latencies = []
    add = maps.add

    def timed(message):
        latencies.append(1e-9 * (time.time_ns() - to_nanoseconds(message.header.stamp)))
        add(message)

    maps.subscription.callback = timed
    robot = RawRobot(session, mapper)
    reached = robot.drive(seconds, rate)
    median, most = np.percentile(latencies, [50, 99])
    cells = maps.last.info.width * maps.last.info.height
    print(
        f'latency at {rate} Hz (reached {reached:.1f}), from the publication of the last reading in a map to its arrival at a '
        f'subscriber: median {1e3 * median:.0f} ms, 99th percentile {1e3 * most:.0f} ms, of {len(latencies)} maps, the last of '
        f'{cells} cells; {settings}',
        flush=True,
    )


@in_session
def measure_rate(session, steps):
    held = None
    mapper = session.mapper({'node.diagnostics_rate': 5.0}, defaults=STRENGTHS)
    watched = mapper.watch('mean')
    robot = RawRobot(session, mapper)
    for rate in steps:
        reached = robot.drive(STEP_SECONDS, rate)
        time.sleep(1.0)
        report = mapper.fresh_diagnostics()
        missing = robot.sent - report.count('readings')
        lost = [report.count('readings lost'), report.count('poses lost')]
        print(
            f'rate {rate} Hz (reached {reached:.0f}): {missing} readings not received, '
            f'{lost[0]} readings and {lost[1]} poses lost, {report.values["batches merged"]} batches merged, '
            f'{len(watched.messages)} maps so far',
            flush=True,
        )
        if missing or any(lost):
            print(f'largest rate held without loss for {STEP_SECONDS:g} s: {held} Hz of readings and as many poses')
            return
        if reached < REACHED * rate:
            print(f'the publisher is the limit: {reached:.0f} Hz of readings and as many poses were held without loss')
            return
        held = rate
    print(f'every rate up to {held} Hz of readings and as many poses was held without loss')


def describe_machine():
    model = [line.split(':')[1].strip() for line in open('/proc/cpuinfo') if line.startswith('model name')]
    load = ', '.join(f'{value:.1f}' for value in os.getloadavg())
    print(f'{os.cpu_count()} cores ({model[0] if model else "unknown"}), load {load}', flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seconds', type=float, default=60.0, help='how long each measurement but that of the rate takes')
    parser.add_argument('--only', nargs='+', choices=['load', 'latency', 'rate'], default=['load', 'latency', 'rate'])
    arguments = parser.parse_args()
    isolate()
    describe_machine()
    if 'load' in arguments.only:
        for rate in (50, 200):
            measure_load(rate, arguments.seconds)
    if 'latency' in arguments.only:
        measure_latency(50, arguments.seconds)
    if 'rate' in arguments.only:
        measure_rate(STEPS)


if __name__ == '__main__':
    main()

"""Resumes the paused player of a bag once the subscriptions of a node are matched, so that it receives the first message too.

It reports when the node has subscribed: then the player may start.
"""

import os
import signal

# Before slow imports, so that a signal during them causes no traceback.
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: os._exit(0))

import argparse  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402

import rclpy  # noqa: E402
from rclpy.qos import QoSCompatibility, qos_check_compatible  # noqa: E402
from rclpy.signals import SignalHandlerOptions  # noqa: E402
from rclpy.utilities import get_rmw_implementation_identifier  # noqa: E402
from rosbag2_interfaces.srv import Resume  # noqa: E402

# Seconds between two checks of the graph.
PERIOD = 0.1

# Seconds for player and node to discover each other too, after this process has seen both. With Fast DDS a participant that missed the
# first announcements of another one hears the next after 3 s.
SETTLING = {'rmw_fastrtps_cpp': 3.5}
SETTLING_OTHERWISE = 1.0


def main():
    arguments = parse(sys.argv[1:])
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    observer = rclpy.create_node('magmap_replay')
    try:
        wait_until(is_subscribed, why_not_subscribed, observer, arguments)
        print(arguments.say, flush=True)
        wait_until(is_matched, why_not_matched, observer, arguments)
        time.sleep(SETTLING.get(get_rmw_implementation_identifier(), SETTLING_OTHERWISE))
        resume(observer, arguments)
    except TimeoutError as error:
        sys.exit(str(error))
    finally:
        rclpy.shutdown()


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--node', required=True, help='the full name of the node')
    parser.add_argument('--player', default='/rosbag2_player', help='the full name of the player')
    parser.add_argument('--topics', nargs='+', required=True, help='the topics that must be matched')
    parser.add_argument('--say', default='the node has subscribed', help='what to print once the node has subscribed to them')
    parser.add_argument('--timeout', type=float, default=60.0, help='seconds to wait for each step')
    return parser.parse_args(arguments)


def wait_until(holds, why_not, observer, arguments):
    """Returns once this holds for all topics."""
    deadline = time.monotonic() + arguments.timeout
    missing = arguments.topics
    while missing:
        if time.monotonic() > deadline:
            raise TimeoutError('; '.join(why_not(observer, topic, arguments) for topic in missing))
        rclpy.spin_once(observer, timeout_sec=PERIOD)
        missing = [topic for topic in arguments.topics if not holds(observer, topic, arguments)]


def is_subscribed(observer, topic, arguments):
    return bool(endpoints_of(arguments.node, observer.get_subscriptions_info_by_topic(topic)))


def why_not_subscribed(observer, topic, arguments):
    subscribers = ', '.join(map(full_name, observer.get_subscriptions_info_by_topic(topic))) or 'none'
    return f'{topic}: expected {arguments.node} as a subscriber, found {subscribers}; does config name another topic?'


def is_matched(observer, topic, arguments):
    players = endpoints_of(arguments.player, observer.get_publishers_info_by_topic(topic))
    nodes = endpoints_of(arguments.node, observer.get_subscriptions_info_by_topic(topic))
    return any(are_compatible(player, node) for player in players for node in nodes)


def are_compatible(publisher, subscription):
    compatibility, _ = qos_check_compatible(publisher.qos_profile, subscription.qos_profile)
    return compatibility != QoSCompatibility.ERROR


def endpoints_of(node, endpoints):
    return [endpoint for endpoint in endpoints if full_name(endpoint) == node]


def full_name(endpoint):
    return f"{endpoint.node_namespace.rstrip('/')}/{endpoint.node_name}"


def why_not_matched(observer, topic, arguments):
    publishers = observer.get_publishers_info_by_topic(topic)
    subscriptions = observer.get_subscriptions_info_by_topic(topic)
    players = endpoints_of(arguments.player, publishers)
    nodes = endpoints_of(arguments.node, subscriptions)
    if players and nodes:
        return f'{topic}: expected compatible reliability, found {quality(players)} published and {quality(nodes)} subscribed'
    if players:
        return why_not_subscribed(observer, topic, arguments)
    return f"{topic}: expected {arguments.player} as a publisher, found {', '.join(map(full_name, publishers)) or 'none'}"


def quality(endpoints):
    return ', '.join(endpoint.qos_profile.reliability.name.lower() for endpoint in endpoints)


def resume(observer, arguments):
    service = f'{arguments.player}/resume'
    client = observer.create_client(Resume, service)
    if not client.wait_for_service(timeout_sec=arguments.timeout):
        raise TimeoutError(f'expected the service {service} within {arguments.timeout:g} s, found none')
    answer = client.call_async(Resume.Request())
    deadline = time.monotonic() + arguments.timeout
    while not answer.done():
        if time.monotonic() > deadline:
            raise TimeoutError(f'expected an answer of {service} within {arguments.timeout:g} s, got none')
        # In short steps, so that signals are handled in between.
        rclpy.spin_once(observer, timeout_sec=PERIOD)


if __name__ == '__main__':
    main()

"""Checks the arguments of a launch file before anything starts: wrong ones are rejected with what was expected."""

import difflib
import math
from pathlib import Path

PACKAGE = 'magmap'

# Configurations of launch itself and launch_ros, whatever the launch file declares.
OF_LAUNCH = ('emulate_tty', 'launch-prefix', 'launch-prefix-filter', 'ros_namespace', 'sigkill_timeout', 'sigterm_timeout')

BOOLEANS = {'true': True, '1': True, 'false': False, '0': False}

LOG_LEVELS = ('debug', 'info', 'warn', 'error', 'fatal')


def given_to(launch_file, words):
    """The arguments (NAME:=VALUE) for this launch file, if it is the one launched by this command line; else None.

    Included launch files get the arguments of the whole launch: what they do not know, another may.
    """
    path = Path(launch_file).resolve()
    for index, word in enumerate(words):
        is_of_package = index > 0 and words[index - 1] == PACKAGE and word == path.name
        if is_of_package or (Path(word).name == path.name and Path(word).is_file() and Path(word).resolve() == path):
            return [word for word in words[index + 1 :] if ':=' in word and not word.startswith('-')]
    return None


def check_command_line(launch_file, words, declared):
    """Rejects unknown arguments for this launch file, if it is the one launched by this command line; whether it is."""
    given = given_to(launch_file, words)
    if given is not None:
        reject_unknown(given, [argument.name for argument in declared])
    return given is not None


def reject_unknown(given, known):
    """Rejects arguments with other names than these."""
    for argument in given:
        name = argument.split(':=')[0]
        if name in known or name in OF_LAUNCH:
            continue
        nearest = difflib.get_close_matches(name, known, n=1)
        if '.' in name:
            advice = 'settings are in a file: config:=FILE or params_file:=FILE'
        elif nearest:
            advice = f'did you mean {nearest[0]}?'
        else:
            advice = f'expected one of {", ".join(known)}'
        raise RuntimeError(f'unknown argument {name}; {advice}')


def boolean(argument, value):
    if value.lower() not in BOOLEANS:
        raise RuntimeError(f"{argument}: expected true or false, found '{value}'")
    return BOOLEANS[value.lower()]


def reject_false(given, argument, reason):
    """Rejects everything but true."""
    if not boolean(argument, given[argument]):
        raise RuntimeError(f"{argument}: expected true, because {reason}, found '{given[argument]}'")


def reject_not_positive(given, argument):
    try:
        is_positive = 0.0 < float(given[argument]) < math.inf
    except ValueError:
        is_positive = False
    if not is_positive:
        raise RuntimeError(f"{argument}: expected a number above 0, found '{given[argument]}'")


def reject_other(given, argument, choices):
    """Rejects everything but these."""
    if given[argument] not in choices:
        raise RuntimeError(f"{argument}: expected one of {', '.join(filter(None, choices))}, found '{given[argument]}'")


def reject_unknown_log_level(given, argument):
    # The name of a logger may precede it.
    level = given[argument].rsplit(':=', 1)[-1]
    if given[argument] and level.lower() not in LOG_LEVELS:
        raise RuntimeError(f"{argument}: expected one of {', '.join(LOG_LEVELS)}, found '{given[argument]}'")


def reject_missing_file(given, argument):
    if given[argument] and not Path(given[argument]).is_file():
        raise RuntimeError(f"{argument}: expected a file, found none at '{given[argument]}'")

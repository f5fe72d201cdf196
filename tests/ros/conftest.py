"""Runs of the tests do not disturb each other, nor what else is on this machine: each has a domain and folders of its own."""

import os
from pathlib import Path
import socket
import sys

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

# Domains above this use ports that the operating system gives to others.
DOMAINS = 100


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


def pytest_configure(config):
    os.environ['ROS_DOMAIN_ID'] = str(free_domain())
    os.environ['CYCLONEDDS_URI'] = (HERE / 'cyclonedds.xml').as_uri()
    os.environ['RCUTILS_COLORIZED_OUTPUT'] = '0'
    os.environ['RCUTILS_LOGGING_BUFFERED_STREAM'] = '0'


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """Logs and maps stay among the files of the test."""
    monkeypatch.setenv('ROS_HOME', str(tmp_path / 'ros'))
    monkeypatch.setenv('ROS_LOG_DIR', str(tmp_path / 'ros' / 'log'))


@pytest.fixture
def session(tmp_path):
    """An observer and the processes of a test; their logs are shown when it fails."""
    from harness import Session

    with Session(tmp_path) as running:
        yield running

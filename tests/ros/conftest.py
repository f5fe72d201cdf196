"""Runs of the tests do not disturb each other, nor what else is on this machine: each has a domain and folders of its own."""

from pathlib import Path
import sys

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import Session, isolate  # noqa: E402


def pytest_configure(config):
    isolate()


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """Logs and maps stay among the files of the test."""
    monkeypatch.setenv('ROS_HOME', str(tmp_path / 'ros'))
    monkeypatch.setenv('ROS_LOG_DIR', str(tmp_path / 'ros' / 'log'))


@pytest.fixture
def session(tmp_path):
    """An observer and the processes of a test; their logs are shown when it fails."""
    with Session(tmp_path) as running:
        yield running

"""Fixtures that run programs on the hosts of labs (networks of namespaces on one machine)."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from slackline.lab import Lab


@pytest.fixture(autouse=True)
def _able(lab_allowed: None) -> None:
    """Skip every test of this folder if labs are impossible on this machine."""


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Provide start(lab, host, code, *arguments), which runs Python code on a host until the test
    ends."""
    processes = []

    def run(lab: Lab, host: int, code: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            lab.command(host, [sys.executable, "-S", "-c", code, *arguments]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()

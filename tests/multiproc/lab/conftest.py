"""Programs on the hosts of labs."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from slackline.lab import Lab


@pytest.fixture(autouse=True)
def _able(lab_allowed: None) -> None:
    """Every test here needs one."""


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """start(lab, host, code, *arguments): Python code on a host; ended with the test."""
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

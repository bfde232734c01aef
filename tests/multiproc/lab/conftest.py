"""Labs need Linux, root and iproute2; without them these tests are skipped with the reason."""

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from slackline.errors import UsageError
from slackline.lab import Lab
from slackline.lab._system import require


@pytest.fixture(autouse=True)
def _able() -> None:
    try:
        require()
    except UsageError as error:
        pytest.skip(str(error))


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

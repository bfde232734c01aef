"""Labs need Linux, root, iproute2 and a machine that lets them make namespaces and TAP devices;
without them these tests are skipped with the reason."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from slackline.errors import UsageError
from slackline.lab import Lab
from slackline.lab._system import require


@pytest.fixture(autouse=True, scope="session")
def _able() -> None:
    try:
        require()
    except UsageError as error:
        pytest.skip(str(error))
    probe = ["ip", "netns", "exec", f"slackline-probe-{os.getpid()}", "test", "-c", "/dev/net/tun"]
    try:
        for verb in ("add", "delete"):
            subprocess.run([*probe[:2], verb, probe[3]], check=True, capture_output=True, text=True)
        subprocess.run(probe[4:], check=True)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine does not allow labs: {error}, {error.stderr}")


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

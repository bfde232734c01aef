"""The fixture `job` for tests with real ranks: `job(size, function)` runs a function of the test's
file as processes.

Tests and ranks can import the modules beside this file.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from slackline.errors import UsageError
from slackline.lab import require

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))

from rank_jobs import ForkServer, Jobs


@pytest.fixture(scope="session")
def job(pytestconfig: pytest.Config) -> Iterator[Jobs]:
    # Under pytest-xdist, the main process gives all workers the address of one server.
    address = getattr(pytestconfig, "workerinput", {}).get("fork_server")
    with ExitStack() as stack:
        if address is None:
            address = stack.enter_context(ForkServer()).address
        yield stack.enter_context(closing(Jobs(address)))


@pytest.fixture
def store() -> Any:
    """Provide a store for ranks that run an example. The store outlives the ranks, like
    torchrun's."""
    from torch import distributed

    return distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture(scope="session")
def lab_allowed() -> None:
    """Skip the test, with the reason, where labs are impossible. A lab needs Linux, root, iproute2
    and permission to create namespaces and TAP devices."""
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

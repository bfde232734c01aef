"""The settings of all tests.

Tests that simulate circuits are skipped when a tool is missing. Hypothesis draws the same examples
every time, however slow the machine is, and four times as many in `make test-full`. Every process
that a test starts reacts to SIGINT, computes with one thread, and must leave no native objects
behind (support/leaks.py). The workers of pytest-xdist share
one process that forks ranks.
"""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from slackline import circuit

sys.path.insert(0, str(Path(__file__).with_name("multiproc")))
sys.path.insert(0, str(Path(__file__).with_name("support")))

from leaks import fail_if_leaked, fail_on_leaks
from rank_jobs import ForkServer

settings.register_profile(
    "full",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", settings.get_profile("full"), max_examples=25)
settings.load_profile("quick")  # `make test-full` loads the other one

# A shell starts background jobs with SIGINT ignored, and child processes inherit that. Tests that
# interrupt a process need SIGINT to work, so the default handler is restored.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Several tests share the cores. A second OpenMP thread in each process would mostly wait in a busy
# loop: torch's tests would use one and a half times the processor time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

fail_on_leaks()

_TOOLS = {
    "verilator": "verilator",
    "iverilog": "iverilog",
    "yosys": "yosys",
    "g++": "g++",
    "ip": "iproute2",
    "nft": "nftables",
    "patch": "patch",
}
"""The programs without which tests are skipped, each with its Debian package."""

_SERVER = pytest.StashKey[ForkServer]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a worker of pytest-xdist the address of the process that forks ranks."""
    if _SERVER not in node.config.stash:
        node.config.stash[_SERVER] = ForkServer()
    node.workerinput["fork_server"] = node.config.stash[_SERVER].address


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the process that forks ranks, after the workers of pytest-xdist have ended."""
    if _SERVER in config.stash:
        config.stash[_SERVER].close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that simulate circuits when a tool for simulation is missing."""
    simulating = [item for item in items if "simulates" in item.keywords]
    if simulating and (reason := circuit.missing_tools()):
        for item in simulating:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """Collect the tests without Python's garbage collector, which then passes over their objects.

    Each of its collections would visit the objects of all tests, none of which becomes garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Fail a test if a process that inherited its standard error has left native objects behind."""
    report: Any = yield
    fail_if_leaked(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Say in the very last line which tools to install, if tests were skipped without them."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    missing = [package for tool, package in _TOOLS.items() if shutil.which(tool) is None]
    skipped = 0 if reporter is None else len(reporter.stats.get("skipped", ()))
    if skipped and missing:
        reporter.ensure_newline()
        reporter.write_line(
            f"{skipped} tests were skipped. To run them: apt install {' '.join(missing)}"
        )

"""Settings of all tests.

Tests that simulate circuits are skipped where a tool is missing; hypothesis draws the same examples
every time, however slow the machine is; and every process that a test starts obeys SIGINT.
"""

import signal

import pytest
from hypothesis import settings

from slackline import circuit

settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("repeatable")

# A shell starts a job in its background with SIGINT ignored, and processes hand that down to the
# processes that they start. Tests that interrupt a process need it to listen.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that simulate circuits are skipped where the tools for it are missing."""
    simulating = [item for item in items if "simulates" in item.keywords]
    if simulating and (reason := circuit.missing_tools()):
        for item in simulating:
            item.add_marker(pytest.mark.skip(reason=reason))

"""For all tests: what simulates needs tools, and hypothesis draws the same examples every time.

That holds however slow the machine is.
"""

import pytest
from hypothesis import settings

from slackline import circuit

settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that simulate circuits are skipped where the tools for it are missing."""
    simulating = [item for item in items if "simulates" in item.keywords]
    if simulating and (reason := circuit.missing_tools()):
        for item in simulating:
            item.add_marker(pytest.mark.skip(reason=reason))

"""Circuits that several tests simulate; without the tools for it these tests are skipped."""

import sys
from pathlib import Path

import pytest

from slackline import circuit
from slackline.errors import UsageError

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = missing()
    if reason is not None:
        for item in items:
            if "simulates" in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))


def missing() -> str | None:
    """Why circuits cannot be simulated here, or None."""
    try:
        _ = circuit.AggregationNode
    except UsageError as error:
        return str(error)
    return circuit.missing_tools()

"""Fixtures of the fault tests, and the import path of their helper modules."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))

from fault_job import Job


@pytest.fixture
def job() -> Iterator[Job]:
    """Provide a job that starts ranks as processes, and kill the remaining ones at the end."""
    with Job() as running:
        yield running

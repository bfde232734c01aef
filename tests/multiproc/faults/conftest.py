"""The helpers are modules beside the tests: their folder joins the path here."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))

from fault_job import Job


@pytest.fixture
def job() -> Iterator[Job]:
    """Starts ranks as processes; those that are left at the end are killed."""
    with Job() as running:
        yield running

"""Hosts of any network, for the tests of this folder."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))

from network_hosts import Wiring


@pytest.fixture
def wire(lab_allowed: None, tmp_path: Path) -> Iterator[Callable[[int], Wiring]]:
    """Return a function wire(hosts) that makes hosts without NICs; the test's end removes them."""
    with ExitStack() as stack:
        yield lambda hosts: stack.enter_context(Wiring(hosts, tmp_path))

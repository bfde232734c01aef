"""Tests of operations beyond 4 GiB, whose offsets and totals need more than 32 bits."""

import fcntl
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from conformance_vectors import RAILS, at, options

from slackline.nic import Group
from slackline.testing import run_ranks
from slackline.wire import DType, ReduceOp

COUNT = (1 << 32) + 300_007
NEEDED_GIB = 12
PIECE = 64 << 20


def available_gib() -> float:
    """Return the memory in GiB that the system can provide without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / (1 << 20)
    raise AssertionError("/proc/meminfo does not tell MemAvailable")


@pytest.fixture
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let only one process of this run hold tensors of 4 GiB at a time."""
    with (tmp_path_factory.getbasetemp().parent / "long-messages.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("rail", RAILS)
def test_an_all_reduce_of_more_than_four_gibibytes_is_right_to_the_last_element(rail: str) -> None:
    if available_gib() < NEEDED_GIB:
        pytest.skip(f"needs {NEEDED_GIB} GiB of free memory, there are {available_gib():.1f}")

    def body(group: Group) -> None:
        values = np.full(COUNT, group.rank + 1, np.uint8)
        values[-1] = 100 + group.rank
        values[1 << 32] = 50 + group.rank
        place = at(values)
        group.all_reduce(place, place, COUNT, DType.UINT8, ReduceOp.SUM, blocking=True)
        assert values[-1] == 201
        assert values[1 << 32] == 101
        threes = sum(  # in pieces, since the comparison makes an array as long as its operand
            np.count_nonzero(values[start : start + PIECE] == 3) for start in range(0, COUNT, PIECE)
        )
        assert threes == COUNT - 2

    run_ranks(2, body, options=options(rails=(rail,)), limit=timedelta(seconds=280))

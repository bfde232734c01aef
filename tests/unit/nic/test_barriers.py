"""Tests that a barrier ends after the operations that were posted before it."""

import threading
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from slackline.errors import TimeoutError
from slackline.nic import Group, NicOptions
from slackline.testing import run_ranks
from slackline.wire import DType, ReduceOp

LARGE = 4 << 20


def reduction(group: Group, count: int, **posting: Any) -> tuple[np.ndarray, Any]:
    """Post the sum of `count` ones, and return the buffer and the Transfer."""
    data = np.ones(count, np.float32)
    at = data.ctypes.data
    return data, group.all_reduce(at, at, count, DType.FLOAT32, ReduceOp.SUM, **posting)


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("rails", [("shm",), ("tcp",)])
def test_all_operations_before_a_barrier_have_ended_after_it(
    rails: tuple[str], blocking: bool
) -> None:
    def body(group: Group) -> bool:
        posted = [reduction(group, count) for count in (LARGE, 3, 1000)]
        group.barrier(blocking=blocking).wait()
        return all(each.done() and (data == group.size).all() for data, each in posted)

    options = NicOptions(rails=rails, arena_bytes=64 << 20)
    assert run_ranks(3, body, options=options) == [True] * 3


def test_several_barriers_keep_their_places() -> None:
    def body(group: Group) -> list[bool]:
        posted, barriers = [], []
        for count in (LARGE, 3, LARGE):
            posted.append(reduction(group, count))
            barriers.append(group.barrier())
        seen = []
        for index, barrier in enumerate(barriers):
            barrier.wait()
            seen += [each.done() for _, each in posted[: index + 1]]
        return seen

    assert run_ranks(2, body, options=NicOptions(arena_bytes=64 << 20)) == [[True] * 6] * 2


def test_a_tagged_operation_is_no_part_of_the_order() -> None:
    passed = threading.Event()

    def body(group: Group) -> float:
        if group.rank == 1:
            group.barrier(blocking=True)
            assert passed.wait(20)
        data, transfer = reduction(group, 8, tag=5)
        if group.rank == 0:
            group.barrier(blocking=True)
            passed.set()
        transfer.wait()
        return float(data.sum())

    assert run_ranks(2, body) == [16.0, 16.0]


def test_a_barrier_that_is_late_names_the_operation_it_waits_for() -> None:
    checked = threading.Event()

    def body(group: Group) -> str:
        if group.rank == 1:
            assert checked.wait(20)
        _, transfer = reduction(group, 8)
        text = ""
        if group.rank == 0:
            with pytest.raises(TimeoutError) as raised:
                group.barrier(timeout=timedelta(milliseconds=50), blocking=True)
            text = str(raised.value)
            checked.set()
        transfer.wait()
        return text

    # In a plan whose ranks pass data on, such as "ring", a rank may also wait for others.
    options = NicOptions(plan="direct", arena_bytes=64 << 20)
    text = run_ranks(2, body, options=options)[0]
    assert "waiting for the end of all_reduce" in text, text
    assert "which waits for rank 1 (which has not posted it)" in text, text

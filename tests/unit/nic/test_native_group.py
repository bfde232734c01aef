"""Tests of the properties that a group on the native engine reports."""

import threading
import time
from typing import Any, cast

import numpy as np
import pytest

from slackline.errors import PeerError, SlacklineError
from slackline.nic import Group, NicOptions
from slackline.plan.collective import Collective, generate
from slackline.testing import run_ranks
from slackline.testing.reference import execute
from slackline.wire import DType, ReduceOp

SMALL = 64 << 20
COUNTS = [*range(20), 31, 32, 33, 47, 48, 49, 95, 96, 97, 1000, 4099]


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64, DType.FLOAT16])
@pytest.mark.parametrize("ranks", [3, 4])
def test_the_engine_cuts_a_buffer_where_the_plan_does(ranks: int, dtype: DType) -> None:
    """Check the chunks by the order of summation: a ring sums each chunk in another order, and with
    these numbers each order gives another result."""
    types = {DType.FLOAT32: np.float32, DType.FLOAT64: np.float64, DType.FLOAT16: np.float16}
    big = {DType.FLOAT32: 2.0**24, DType.FLOAT64: 2.0**53, DType.FLOAT16: 2.0**11}[dtype]
    numbers = [big, 1.0, -big, 1.0][:ranks]
    plan = generate(Collective.ALL_REDUCE, "ring", ranks)

    def body(group: Group) -> list[Any]:
        results = []
        for count in COUNTS:
            data = np.full(count, numbers[group.rank], types[dtype])
            at = data.ctypes.data
            group.all_reduce(at, at, count, dtype, ReduceOp.SUM, blocking=True)
            results.append(data)
        return results

    options = NicOptions(plan="ring", order="any", arena_bytes=SMALL)
    for results in run_ranks(ranks, body, options=options):
        for count, found in zip(COUNTS, results, strict=True):
            inputs = [(np.full(count, number, types[dtype]),) for number in numbers]
            wanted = execute(plan, inputs, ReduceOp.SUM, dtype)[0][0]
            assert found.tobytes() == wanted.tobytes(), f"{count} elements"


def test_a_plan_that_was_asked_for_by_name_is_taken() -> None:
    def body(group: Group) -> tuple[str, str]:
        selected = cast(Any, group).plan_for(1 << 20)
        return selected.name, selected.reason

    options = NicOptions(plan="torus", order="any", arena_bytes=SMALL)
    assert set(run_ranks(4, body, options=options)) == {("torus", "asked for by name")}


@pytest.mark.parametrize("rail", ["shm", "tcp"])
@pytest.mark.parametrize("order", ["rank", "any"])
def test_every_rank_chooses_the_same_plan_and_says_why(order: str, rail: str) -> None:
    sizes = [0, 1, 1 << 10, 1 << 16, 1 << 20, 1 << 26]

    def body(group: Group) -> list[tuple[str, str]]:
        selected = [cast(Any, group).plan_for(size) for size in sizes]
        return [(each.name, each.reason) for each in selected]

    options = NicOptions(order=order, rails=(rail,), arena_bytes=SMALL)
    first, *others = run_ranks(3, body, options=options)
    assert others == [first, first]
    assert all(reason for _, reason in first)
    if order == "rank":
        assert {name for name, _ in first} <= {"direct", "mesh", "reduce-broadcast", "flat-tree"}


def bytes_moved(rail: str, *, registered: bool) -> dict[str, int]:
    """Return the increase of rank 0's counters during an all_reduce of 4 MB."""
    count = 1_000_000

    def body(group: Group) -> dict[str, int]:
        data = np.ones(count, np.float32)
        at = group.allocate(data.nbytes) if registered else data.ctypes.data
        before = dict(group.counters())
        group.all_reduce(
            at if registered else data.ctypes.data,
            at,
            count,
            DType.FLOAT32,
            ReduceOp.SUM,
            blocking=True,
        )
        after = group.counters()
        # A rank that leaves closes its rails: no rank may leave while the other still counts.
        group.barrier(blocking=True)
        return {name: after[name] - before.get(name, 0) for name in after}

    options = NicOptions(rails=(rail,), plan="mesh", arena_bytes=SMALL)
    return run_ranks(2, body, options=options)[0]


def test_registered_memory_is_read_in_place() -> None:
    grown = bytes_moved("shm", registered=True)
    assert grown["operations"] == 1
    assert grown["shm_reference_bytes"] > 0
    assert grown["shm_staged_bytes"] == 0
    assert grown["wire_payload_bytes"] == 0


def test_private_memory_is_staged() -> None:
    grown = bytes_moved("shm", registered=False)
    assert grown["shm_staged_bytes"] > 0


def test_a_wire_carries_every_byte_once() -> None:
    grown = bytes_moved("tcp", registered=False)
    assert grown["wire_payload_bytes"] == 4_000_000, "half of the buffer, and the other half's sum"
    assert grown["frames_resent"] == grown["duplicates_dropped"] == grown["rails_lost"] == 0


def test_a_peer_that_has_left_is_no_lost_rail() -> None:
    """Check a rank that goes on after the other one has closed its engine, as a slow rank does."""

    def body(group: Group) -> int:
        group.barrier(blocking=True)
        if group.rank == 0:
            while group.counters().get("tcp_rails"):
                time.sleep(0.001)
        return group.counters()["rails_lost"]

    options = NicOptions(rails=("tcp",), arena_bytes=SMALL, connections=2)
    assert run_ranks(2, body, options=options) == [0, 0]


def test_memory_that_is_given_back_can_be_had_again() -> None:
    def body(group: Group) -> None:
        first = group.allocate(40 << 20)
        group.free(first)
        second = group.allocate(40 << 20)
        assert first % 64 == second % 64 == 0
        group.free(second)

    run_ranks(1, body, options=NicOptions(arena_bytes=SMALL))


def test_callbacks_are_told_of_success_and_failure() -> None:
    told: list[BaseException | None] = []

    def body(group: Group) -> None:
        called = threading.Event()

        def tell(error: BaseException | None) -> None:
            told.append(error)
            called.set()

        data = np.ones(10, np.float32)
        at = data.ctypes.data
        if group.rank == 1:
            group.send(at, 10, DType.FLOAT32, 0, 1, blocking=True)
            group.barrier(blocking=True)
            group.abort("enough")
            return
        posted = group.recv(at, 10, DType.FLOAT32, 1, 1)
        posted.add_done_callback(tell)
        assert called.wait(60)
        called.clear()
        posted.add_done_callback(tell)
        assert called.is_set(), "at once, for it has ended"
        called.clear()
        waiting = group.recv(at, 10, DType.FLOAT32, 1, 2)
        waiting.add_done_callback(tell)
        group.barrier(blocking=True)
        assert called.wait(60)
        with pytest.raises(SlacklineError):
            waiting.wait()

    run_ranks(2, body)
    assert told[:2] == [None, None]
    assert isinstance(told[2], PeerError)
    assert str(told[2]).startswith("rank 1 aborted the group: enough")

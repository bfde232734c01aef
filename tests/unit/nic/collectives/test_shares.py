"""Tests of all_reduces with shares: on the engine with given weights, and as the ranks agree."""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import numpy as np
import pytest

import slackline._native as _native
from slackline.errors import MismatchError, PeerError, SlacklineError, TimeoutError
from slackline.nic import Group, NicOptions
from slackline.nic._translation import to_error
from slackline.nic.collectives._shares import slice_bytes
from slackline.plan.collective import WHOLE, Collective, generate, split
from slackline.testing import run_ranks
from slackline.testing.reference import execute
from slackline.wire import DType, ReduceOp

ARENA = 64 << 20
MESH = NicOptions(plan="mesh", order="rank", rails=("tcp",), arena_bytes=ARENA)
LIMIT_NS = 20 * 10**9
TYPES = {DType.FLOAT32: np.float32, DType.FLOAT64: np.float64, DType.FLOAT16: np.float16}
WEIGHTS = [(1, 1, 1), (5, 0, 3), (0, 0, 9), (21846, 21845, 21845), (1, 65534, 1)]

BUFFERS: list[Any] = []
"""The arrays under reduction: an engine may read them until its group is closed."""


@pytest.fixture(autouse=True)
def buffers_outlive_groups() -> Iterator[None]:
    yield
    BUFFERS.clear()


def inputs(rank: int, count: int, dtype: DType) -> Any:
    generator = np.random.default_rng(rank)
    return (generator.standard_normal(count) * 2.0 ** generator.integers(-9, 9, count)).astype(
        TYPES[dtype]
    )


def program(group: Group, name: str = "mesh") -> _native.Program:
    return cast(Any, group)._book.program(Collective.ALL_REDUCE, name)


def native(group: Group) -> _native.Group:
    return cast(Any, group)._native


def post(
    group: Group,
    shares: _native.Shares,
    data: Any,
    dtype: DType = DType.FLOAT32,
    op: ReduceOp = ReduceOp.SUM,
    limit_ns: int = LIMIT_NS,
    name: str = "mesh",
) -> _native.Request:
    """Post an all_reduce in place, and return while it is still running."""
    BUFFERS.append(data)
    at = data.ctypes.data
    request = native(group).run(
        program(group, name),
        at,
        at,
        data.size,
        dtype,
        op,
        data.nbytes,
        -1,
        0,
        limit_ns,
        False,
        shares,
    )
    assert request is not None
    return request


def error_of(request: _native.Request) -> SlacklineError:
    request.wait(-1)
    failure = request.failure()
    assert failure is not None
    return to_error(failure)


@pytest.mark.parametrize("rail", ["tcp", "shm", "udp"])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG])
def test_under_any_weights_the_bits_are_those_of_rank_order(rail: str, op: ReduceOp) -> None:
    """Check every type and weights; operations with unknown shares begin when they are set."""
    cases = [(dtype, count, w) for dtype in TYPES for count in (1, 777, 90_001) for w in WEIGHTS]

    def body(group: Group) -> list[bytes]:
        found = []
        for number, (dtype, count, weights) in enumerate(cases):
            shares = _native.Shares()
            data = inputs(group.rank, count, dtype)
            if number % 2:
                native(group).set_shares(shares, weights, 1 + number % 15, program(group))
            request = native(group).run(
                program(group, "direct" if number % 3 else "mesh"),
                data.ctypes.data,
                data.ctypes.data,
                count,
                dtype,
                op,
                data.nbytes,
                -1,
                0,
                LIMIT_NS,
                False,
                shares,
            )
            if number % 2 == 0:
                assert request is not None
                assert not request.done()
                native(group).set_shares(shares, weights, 1 + number % 15, program(group))
            if request is not None:
                assert request.wait(-1)
                assert request.failure() is None
            found.append(data.tobytes())
        return found

    options = NicOptions(order="rank", rails=(rail,), arena_bytes=ARENA)
    results = run_ranks(3, body, options=options)
    for number, (dtype, count, weights) in enumerate(cases):
        plan = generate(Collective.ALL_REDUCE, "mesh", 3, weights=weights)
        given = [(inputs(rank, count, dtype),) for rank in range(3)]
        wanted = execute(plan, given, op, dtype, order="rank")
        equal = execute(generate(Collective.ALL_REDUCE, "mesh", 3), given, op, dtype, order="rank")
        assert wanted[0][0].tobytes() == equal[0][0].tobytes()
        for rank in range(3):
            assert results[rank][number] == wanted[rank][0].tobytes(), (
                f"{dtype}, {count}, {weights}"
            )


def test_weights_move_the_bytes_that_the_plan_says() -> None:
    count, weights = 300_000, (WHOLE // 2, 0, WHOLE // 4, WHOLE // 4)

    def body(group: Group) -> int:
        group.barrier(blocking=True)
        before = group.counters()["wire_payload_bytes"]
        shares = _native.Shares()
        native(group).set_shares(shares, weights, 1, program(group))
        request = post(group, shares, np.ones(count, np.float32))
        assert request.wait(-1)
        return group.counters()["wire_payload_bytes"] - before

    sizes = [size for _, size in split(count, 4, 4, weights)]
    expected = [4 * (count + 2 * size) for size in sizes]
    assert run_ranks(4, body, options=MESH) == expected


def test_ranks_with_different_shares_get_an_error_that_names_both() -> None:
    every_rank_has_it = threading.Barrier(3, timeout=20)

    def body(group: Group) -> str:
        shares = _native.Shares()
        weights, number = WEIGHTS[group.rank % 2], 1 + group.rank % 2
        native(group).set_shares(shares, weights, number, program(group))
        error = error_of(post(group, shares, np.ones(100_000, np.float32)))
        every_rank_has_it.wait()
        assert isinstance(error, MismatchError)
        return str(error)

    texts = run_ranks(3, body, options=MESH)
    assert all("plan 2, shares 1" in text and "plan 2, shares 2" in text for text in texts), texts


def test_an_operation_without_shares_ends_with_the_error_that_they_have() -> None:
    together = threading.Barrier(3, timeout=20)

    def body(group: Group) -> list[str]:
        shares = _native.Shares()
        before = post(group, shares, np.ones(100_000, np.float32))
        native(group).decline(shares, (3, "rank 7 is gone", group.rank, 7, -1, -1))
        after = post(group, shares, np.ones(100_000, np.float32))
        errors = [error_of(before), error_of(after)]
        together.wait()
        assert all(isinstance(each, PeerError) for each in errors)
        return [str(each) for each in errors]

    assert run_ranks(3, body, options=MESH) == [["rank 7 is gone"] * 2] * 3


def test_an_operation_without_shares_times_out_and_says_why() -> None:
    together = threading.Barrier(3, timeout=20)

    def body(group: Group) -> str:
        request = post(group, _native.Shares(), np.ones(100_000, np.float32), limit_ns=50_000_000)
        error = error_of(request)
        together.wait()
        assert isinstance(error, TimeoutError)
        return str(error)

    first, *_ = run_ranks(3, body, options=MESH)
    assert first == (
        "rank 0: all_reduce(sum, float32, 400000 bytes) tag 0 sequence "
        f"{first.split('sequence ')[1].split()[0]} Timed out after 0.05 s (timeout 0.05 s) waiting "
        "for the end of earlier operations, which decide on the shares of the ranks"
    )


@pytest.mark.parametrize("end", ["close", "abort"])
def test_the_end_of_a_group_ends_operations_without_shares(end: str) -> None:
    together = threading.Barrier(3, timeout=20)

    def body(group: Group) -> str:
        together.wait()
        request = post(group, _native.Shares(), np.ones(100_000, np.float32))
        if end == "close":
            group.close(timedelta(milliseconds=50))
        else:
            group.abort("enough")
        return type(error_of(request)).__name__

    assert set(run_ranks(3, body, options=MESH)) <= {"ClosedError", "PeerError"}


def test_an_operation_without_shares_ends_when_a_rank_leaves() -> None:
    def body(group: Group) -> str | None:
        if group.rank == 2:
            group.barrier(tag=9, blocking=True)
            group.close()
            return None
        request = post(group, _native.Shares(), np.ones(100_000, np.float32))
        group.barrier(tag=9, blocking=True)
        return type(error_of(request)).__name__

    assert run_ranks(3, body, options=MESH) == ["PeerError", "PeerError", None]


@pytest.mark.parametrize(
    ("weights", "number", "message"),
    [
        ((1, 2), 1, "3 ranks need 3 weights, not 2"),
        ((0, 0, 0), 1, "the sum of weights must be 1 to 4294967295, not 0"),
        ((1, 1, 1), 16, "the number of shares must be 0 to 15, not 16"),
    ],
)
def test_the_engine_refuses_wrong_shares(weights: Sequence[int], number: int, message: str) -> None:
    def body(group: Group) -> str:
        with pytest.raises(ValueError, match=r"weights|number") as error:
            native(group).set_shares(_native.Shares(), weights, number, program(group))
        return str(error.value)

    assert set(run_ranks(3, body, options=MESH)) == {message}


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(1, 2 << 20), (25e6, 2 << 20), (125e6, 16 << 20), (625e6, 64 << 20), (1e11, 64 << 20)],
)
def test_a_slice_takes_about_a_hundred_milliseconds(rate: float, expected: int) -> None:
    assert slice_bytes(rate) == expected


def sharing(ranks: int, rate: str, **changes: str) -> NicOptions:
    """Return the options of `ranks` ranks that measure their shares; rank 2 has a port of `rate`.

    `changes` replace other options.
    """
    links = [f"link 2-{other} rate {rate}" for other in range(ranks) if other != 2]
    options = NicOptions(
        plan="mesh", shares="measured", rails=("tcp",), faults="; ".join(links), arena_bytes=ARENA
    )
    return replace(options, **changes)


def in_place(group: Group, data: Any, tag: int | None) -> None:
    BUFFERS.append(data)
    at = data.ctypes.data
    group.all_reduce(
        at, at, data.size, DType.FLOAT32, ReduceOp.SUM, tag=tag, blocking=tag is None
    ).wait()


@pytest.mark.parametrize("plan", ["mesh", "auto"])
def test_ranks_agree_on_shares_that_spare_a_slow_port(plan: str) -> None:
    """Check that every sum is exact, that all ranks have equal shares, and that the slow rank's
    share shrinks, after as many operations as the ranks' measurements need on a busy machine. Two
    series of operations use the ports at the same time."""
    ranks, count, calls = 4, (5 << 18) // 4, 60
    wanted = sum(range(1, ranks + 1))

    def body(group: Group) -> list[tuple[tuple[int, ...] | None, str]]:
        for call in range(calls):
            for tag in (None, 5):
                data = np.full(count, group.rank + 1.0, np.float32)
                in_place(group, data, tag)
                assert np.all(data == wanted), f"call {call}, tag {tag}"
            found = [cast(Any, group).shares(tag)[0] for tag in (None, 5)]
            spared = all(weights is not None and weights[2] < WHOLE // 8 for weights in found)
            ending = np.full(1, spared, np.float32)
            in_place(group, ending, None)
            if ending[0] == ranks:
                break
        return [cast(Any, group).shares(tag) for tag in (None, 5)]

    options = sharing(ranks, "80Mbit", plan=plan, order="rank" if plan == "mesh" else "auto")
    results = run_ranks(ranks, body, options=options)
    assert results[1:] == results[:1] * (ranks - 1)
    for weights, reason in results[0]:
        assert weights is not None
        assert sum(weights) == WHOLE
        assert weights[2] < WHOLE // 8, reason
        assert "the shares are" in reason


def test_equal_shares_stay_where_they_are_asked_for() -> None:
    def body(group: Group) -> tuple[tuple[int, ...] | None, str]:
        for _ in range(4):
            in_place(group, np.ones((5 << 18) // 4, np.float32), None)
        return cast(Any, group).shares()

    options = sharing(4, "80Mbit", shares="equal")
    assert run_ranks(4, body, options=options) == [(None, "")] * 4


def test_an_abort_between_slices_ends_a_long_operation_on_every_rank() -> None:
    """Abort on one rank while others wait for it; no slice (part of the tensor) has shares yet."""
    posted = threading.Barrier(4, timeout=20)

    def body(group: Group) -> str | None:
        in_place(group, np.ones((5 << 18) // 4, np.float32), None)
        if group.rank == 3:
            posted.wait()
            group.abort("enough")
            return None
        data = np.ones(20 << 18, np.float32)
        BUFFERS.append(data)
        at = data.ctypes.data
        transfer = group.all_reduce(at, at, data.size, DType.FLOAT32, ReduceOp.SUM)
        posted.wait()
        with pytest.raises(PeerError) as error:
            transfer.wait()
        return str(error.value)

    options = sharing(4, "160Mbit")
    *texts, last = run_ranks(4, body, options=options)
    assert last is None
    assert all("aborted the group" in str(text) for text in texts), texts


def test_ranks_that_disagree_on_the_length_all_learn_it_and_go_on_with_other_operations() -> None:
    def body(group: Group) -> tuple[str, str, float]:
        count = (20 if group.rank == 1 else 24) << 18
        data = np.ones(count, np.float32)
        BUFFERS.append(data)
        at = data.ctypes.data
        transfer = group.all_reduce(at, at, count, DType.FLOAT32, ReduceOp.SUM)
        with pytest.raises(SlacklineError) as error:
            transfer.wait()
        short = np.ones(1, np.float32)
        in_place(group, short, None)
        with pytest.raises(SlacklineError) as again:
            in_place(group, np.ones(20 << 18, np.float32), None)
        # Nothing is outstanding, so closing must not wait for its limit.
        begun = time.monotonic()
        group.close(timedelta(seconds=60))
        assert time.monotonic() - begun < 30
        return type(error.value).__name__, type(again.value).__name__, float(short[0])

    options = sharing(3, "160Mbit")
    assert run_ranks(3, body, options=options) == [("MismatchError", "MismatchError", 3.0)] * 3


def test_closing_a_group_completes_all_slices_that_were_posted() -> None:
    def body(group: Group) -> bool:
        data = np.full(20 << 18, group.rank + 1.0, np.float32)
        at = data.ctypes.data
        transfer = group.all_reduce(at, at, data.size, DType.FLOAT32, ReduceOp.SUM)
        group.close(timedelta(seconds=15))
        assert transfer.done()
        transfer.wait()
        return bool(np.all(data == 6.0))

    options = sharing(3, "400Mbit")
    assert run_ranks(3, body, options=options) == [True] * 3

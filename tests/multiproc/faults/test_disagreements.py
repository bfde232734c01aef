"""Tests of the error messages, word for word, of ranks that disagree or continue after the end."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from slackline.errors import (
    ClosedError,
    MismatchError,
    PeerError,
    SlacklineError,
    UsageError,
)
from slackline.nic import Group, NicOptions
from slackline.testing import run_ranks
from slackline.wire import DType, ReduceOp

RAILS = ("shm", "tcp")
Post = Callable[[Group, Any], object]


def options(rail: str, **changes: Any) -> NicOptions:
    return NicOptions(rails=(rail,), arena_bytes=64 << 20, plan="direct", **changes)


def failures(size: int, rail: str, *posts: Post) -> list[SlacklineError]:
    """Return the error on each rank when rank i posts the i-th of `posts`."""

    everyone_knows = threading.Barrier(size)  # other ranks could take an early end for a fault

    def body(group: Group) -> SlacklineError:
        data = np.zeros(1 << 17, np.float64)
        with pytest.raises(SlacklineError) as caught:
            posts[group.rank](group, data.ctypes.data)
        everyone_knows.wait(60)
        return caught.value

    return run_ranks(size, body, options=options(rail))


def reduces(count: int, dtype: DType = DType.FLOAT32, op: ReduceOp = ReduceOp.SUM) -> Post:
    return lambda group, at: group.all_reduce(at, at, count, dtype, op, tag=5, blocking=True)


SUM_OF_100 = "all_reduce(sum, float32, 400 bytes, plan 1)"
DISAGREEMENTS = [
    pytest.param(reduces(200), "all_reduce(sum, float32, 800 bytes, plan 1)", id="count"),
    pytest.param(
        reduces(100, DType.INT32), "all_reduce(sum, int32, 400 bytes, plan 1)", id="dtype"
    ),
    pytest.param(
        reduces(100, op=ReduceOp.MAX), "all_reduce(max, float32, 400 bytes, plan 1)", id="op"
    ),
    pytest.param(
        lambda group, at: group.barrier(tag=5, blocking=True), "barrier()", id="collective"
    ),
]


@pytest.mark.parametrize("rail", RAILS)
@pytest.mark.parametrize(("other", "named"), DISAGREEMENTS)
def test_ranks_that_post_different_things_are_told_what_each_posted(
    other: Post, named: str, rail: str
) -> None:
    errors = failures(2, rail, reduces(100), other)
    texts = {
        f"the ranks disagree: rank 1 posted {named} where rank 0 posted {SUM_OF_100}",
        f"the ranks disagree: rank 0 posted {SUM_OF_100} where rank 1 posted {named}",
    }
    for rank, error in enumerate(errors):
        assert type(error) is MismatchError
        assert str(error) in texts
        assert (error.rank, error.peer) == (rank, 1 - rank)
        assert (error.tag, error.sequence) == (5, 0)


@pytest.mark.parametrize("rail", RAILS)
def test_a_disagreement_is_told_to_ranks_that_agree_with_the_majority(rail: str) -> None:
    errors = failures(3, rail, reduces(100), reduces(100), reduces(200))
    other = "all_reduce(sum, float32, 800 bytes, plan 1)"
    for error in errors:
        assert type(error) is MismatchError
        assert str(error).startswith("the ranks disagree: rank ")
        assert "rank 2 posted" in str(error)
        assert SUM_OF_100 in str(error)
        assert other in str(error)


@pytest.mark.parametrize("rail", RAILS)
def test_ranks_that_name_different_roots_are_asked_about_the_root(rail: str) -> None:
    def broadcasts(root: int) -> Post:
        return lambda group, at: group.broadcast(
            at, 100_000, DType.FLOAT32, root, tag=5, blocking=True
        )

    errors = failures(2, rail, broadcasts(0), broadcasts(1))
    texts = {
        "the ranks disagree on broadcast(float32, 400000 bytes): rank 1 sent chunk 0, which rank 0 "
        "does not expect from it (is the root the same on every rank?)",
        "the ranks disagree on broadcast(float32, 400000 bytes): rank 0 sent chunk 0, which rank 1 "
        "does not expect from it (is the root the same on every rank?)",
    }
    for error in errors:
        assert type(error) is MismatchError
        assert str(error) in texts


@pytest.mark.parametrize("rail", RAILS)
def test_a_message_of_another_length_is_a_disagreement(rail: str) -> None:
    def send(group: Group, at: int) -> None:
        group.send(at, 1_000_000, DType.UINT8, 1, 5, blocking=True)

    def recv(group: Group, at: int) -> None:
        group.recv(at, 900_000, DType.UINT8, 0, 5, blocking=True)

    errors = failures(2, rail, send, recv)
    text = (
        "the ranks disagree: rank 0 posted message(uint8, 1000000 bytes) where rank 1 posted "
        "message(uint8, 900000 bytes)"
    )
    assert [(type(error), str(error)) for error in errors] == [(MismatchError, text)] * 2


CALLS: dict[str, Post] = {
    "all_reduce": lambda g, at: g.all_reduce(at, at, 1, DType.FLOAT32, ReduceOp.SUM),
    "reduce_scatter": lambda g, at: g.reduce_scatter([at], [1], at, DType.FLOAT32, ReduceOp.SUM),
    "all_gather": lambda g, at: g.all_gather(at, [at], [1], DType.FLOAT32),
    "broadcast": lambda g, at: g.broadcast(at, 1, DType.FLOAT32, 0),
    "reduce": lambda g, at: g.reduce(at, at, 1, DType.FLOAT32, ReduceOp.SUM, 0),
    "gather": lambda g, at: g.gather(at, [at], [1], DType.FLOAT32, 0),
    "scatter": lambda g, at: g.scatter([at], at, [1], DType.FLOAT32, 0),
    "all_to_all": lambda g, at: g.all_to_all([at], [1], [at], [1], DType.FLOAT32),
    "barrier": lambda g, at: g.barrier(),
    "recv": lambda g, at: g.recv(at, 1, DType.FLOAT32, None, 0),
}


@pytest.mark.parametrize("call", CALLS)
def test_nothing_can_be_posted_on_a_closed_group(call: str) -> None:
    def body(group: Group) -> None:
        data = np.zeros(1, np.float32)
        group.close()
        with pytest.raises(ClosedError, match=r"^the group is closed$"):
            CALLS[call](group, data.ctypes.data)
        group.close()

    run_ranks(1, body, options=options("shm"))


@pytest.mark.parametrize("rail", RAILS)
def test_an_abort_ends_what_is_outstanding_everywhere_with_its_reason(rail: str) -> None:
    def body(group: Group) -> SlacklineError:
        data = np.zeros(1000, np.float32)
        at = data.ctypes.data
        posted = group.recv(at, 1000, DType.FLOAT32, 1 - group.rank, 0)
        group.barrier(blocking=True)
        if group.rank == 0:
            group.abort("the loss is not a number")
        with pytest.raises(SlacklineError) as caught:
            posted.wait()
        with pytest.raises(SlacklineError):
            group.barrier(blocking=True)
        return caught.value

    mine, theirs = run_ranks(2, body, options=options(rail))
    text = "rank 0 aborted the group: the loss is not a number"
    assert (type(mine), str(mine)) == (ClosedError, text)
    assert (type(theirs), str(theirs)) == (
        PeerError,
        f"{text} (during message(float32, 4000 bytes) tag 0 sequence 0)",
    )


@pytest.mark.parametrize("rail", RAILS)
def test_a_group_closes_although_something_is_outstanding(rail: str) -> None:
    def body(group: Group) -> SlacklineError | None:
        data = np.zeros(1000, np.float32)
        posted = group.recv(data.ctypes.data, 1000, DType.FLOAT32, None, 0)
        group.barrier(blocking=True)
        group.close(timedelta(seconds=1))
        with pytest.raises(SlacklineError) as caught:
            posted.wait()
        return caught.value

    for error in run_ranks(2, body, options=options(rail)):
        assert isinstance(error, ClosedError | PeerError)
        assert " closed" in str(error)


@pytest.mark.parametrize("rail", RAILS)
def test_the_slower_rank_is_told_that_the_other_has_left(rail: str) -> None:
    def body(group: Group) -> SlacklineError | None:
        if group.rank == 0:
            return None
        data = np.zeros(1000, np.float32)
        with pytest.raises(SlacklineError) as caught:
            group.recv(data.ctypes.data, 1000, DType.FLOAT32, 0, 2, blocking=True)
        return caught.value

    error = run_ranks(2, body, options=options(rail))[1]
    assert type(error) is PeerError
    assert str(error).startswith(
        "rank 0 closed the group: it called destroy_process_group() or ended"
    )
    assert (error.rank, error.peer, error.tag, error.sequence) == (1, 0, 2, 0)


MISTAKES: list[tuple[Post, str]] = [
    (
        lambda g, at: g.all_reduce(at, at, 1, DType.FLOAT32, ReduceOp.BXOR),
        "BXOR is not defined for float32",
    ),
    (
        lambda g, at: g.all_reduce(at, at, 1, DType.BOOL, ReduceOp.AVG),
        "AVG is not defined for bool",
    ),
    (
        lambda g, at: g.all_reduce(at, at, -1, DType.INT8, ReduceOp.SUM),
        "count must be at least 0, not -1",
    ),
    (
        lambda g, at: g.all_reduce(at, at, 1, DType.INT8, ReduceOp.NONE),
        "a reduction needs an operation, not NONE",
    ),
    (lambda g, at: g.barrier(tag=1 << 24), "tag must be 0 to 16777215, not 16777216"),
    (
        lambda g, at: g.broadcast(at, 1, DType.INT8, 2),
        "root must be a rank below 2, not 2",
    ),
    (
        lambda g, at: g.send(at, 1, DType.INT8, g.rank, 0),
        "peer must be another rank below 2, not {rank}",
    ),
    (
        lambda g, at: g.all_gather(at, [at], [1], DType.INT8),
        "counts must have an entry for each of 2 ranks, not 1",
    ),
    (lambda g, at: g.free(at), "{at:#x} is not the start of registered memory"),
    (
        lambda g, at: g.allocate(1 << 40),
        "the arena of 64 MiB has no room for 1 TiB more",
    ),
]


def test_a_mistake_is_told_at_once_and_harms_nothing() -> None:
    def body(group: Group) -> None:
        data = np.ones(100, np.float32)
        at = data.ctypes.data
        for mistake, text in MISTAKES:
            with pytest.raises(UsageError) as caught:
                mistake(group, at)
            assert str(caught.value) == text.format(rank=group.rank, at=at)
        group.all_reduce(at, at, 100, DType.FLOAT32, ReduceOp.SUM, blocking=True)
        assert (data == 2).all()

    run_ranks(2, body, options=options("shm"))


@pytest.mark.parametrize("rail", RAILS)
def test_different_roots_are_found_although_both_broadcasts_were_done(rail: str) -> None:
    """Check that the next operation reports the mismatch. Small data is sent before the roots can
    be compared, so the broadcasts themselves succeed."""

    def broadcasts_twice(root: int) -> Post:
        def post(group: Group, at: int) -> None:
            group.broadcast(at, 1, DType.FLOAT32, root, tag=5, blocking=True)
            group.barrier(blocking=True)
            group.barrier(blocking=True)

        return post

    root = "(is the root the same on every rank?)"
    texts = {
        text
        for rank in (0, 1)
        for text in (
            f"the ranks disagree: rank {1 - rank} sent data of broadcast(float32, 4 bytes) tag 5 "
            f"sequence 0, which rank {rank} has finished without it {root}",
            f"the ranks disagree on broadcast(float32, 4 bytes): rank {1 - rank} sent chunk 0, "
            f"which rank {rank} does not expect from it {root}",
        )
    }
    for error in failures(2, rail, broadcasts_twice(0), broadcasts_twice(1)):
        assert type(error) is MismatchError
        assert str(error) in texts

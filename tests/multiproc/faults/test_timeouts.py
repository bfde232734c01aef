"""Tests of the error messages, word for word, of operations that wait for nothing until their
timeout."""

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import numpy as np
import pytest

from slackline.errors import SlacklineError, TimeoutError
from slackline.nic import Group, NicOptions
from slackline.testing import run_ranks
from slackline.wire import DType, ReduceOp

RAILS = ("shm", "tcp")
LIMITS = tuple(timedelta(seconds=seconds) for seconds in (1, 5, 25))
"""Timeouts of an operation, of which the last one is long enough for a busy machine."""
PATIENCE = timedelta(seconds=100)
KNOWN = {"shm": "its process lives", "tcp": "its engine answers: late, not gone"}


def in_time(
    size: int,
    rail: str,
    body: Callable[[Group, timedelta], list[SlacklineError]],
    texts: Callable[[str], list[set[str]]],
) -> list[SlacklineError]:
    """Run `body(group, timeout)` on each rank, assert that each error has one of its texts in
    `texts(timeout)`, and return the errors of all ranks.

    On a busy machine a rank may post, or answer a probe, after a short timeout has passed. The
    errors then have other texts, and the ranks try again with a longer timeout.
    """
    options = NicOptions(rails=(rail,), arena_bytes=64 << 20, plan="direct")
    for limit in LIMITS:
        everyone_knows = threading.Barrier(size)  # other ranks could take an early end for a fault

        def timed(
            group: Group,
            limit: timedelta = limit,
            everyone_knows: threading.Barrier = everyone_knows,
        ) -> list[SlacklineError]:
            errors = body(group, limit)
            everyone_knows.wait(60)
            return errors

        by_rank = run_ranks(size, timed, options=options, timeout=PATIENCE, limit=PATIENCE)
        errors = [error for each in by_rank for error in each]
        expected = texts(f"{limit.total_seconds():.0f} s")
        assert len(errors) == len(expected)
        wrong = [
            str(error)
            for error, permitted in zip(errors, expected, strict=True)
            if str(error) not in permitted
        ]
        if not wrong:
            break
    assert wrong == []
    assert {type(error) for error in errors} == {TimeoutError}
    return errors


def told(call: Callable[[], object]) -> SlacklineError:
    with pytest.raises(SlacklineError) as caught:
        call()
    return caught.value


def reduce(group: Group, tag: int, timeout: timedelta | None = None, blocking: bool = True) -> None:
    data = np.zeros(100, np.float32)
    at = data.ctypes.data
    group.all_reduce(
        at, at, 100, DType.FLOAT32, ReduceOp.SUM, tag=tag, timeout=timeout, blocking=blocking
    ).wait()


@pytest.mark.parametrize("rail", RAILS)
def test_different_tags_time_out_and_name_what_was_posted_instead(rail: str) -> None:
    def body(group: Group, limit: timedelta) -> list[SlacklineError]:
        return [told(lambda: reduce(group, 5 + group.rank, limit))]

    def texts(limit: str) -> list[set[str]]:
        return [
            {
                f"rank {rank}: all_reduce(sum, float32, 400 bytes) tag {tag} sequence 0 Timed out "
                f"after {limit} (timeout {limit}) waiting for rank {1 - rank} (which has not "
                f"posted it) but has posted tag {other} sequence 0; of rank {1 - rank}: "
                f"{KNOWN[rail]}"
            }
            for rank, tag, other in ((0, 5, 6), (1, 6, 5))
        ]

    for rank, error in enumerate(in_time(2, rail, body, texts)):
        assert (error.rank, error.peer, error.tag, error.sequence) == (rank, 1 - rank, 5 + rank, 0)


@pytest.mark.parametrize("rail", RAILS)
def test_a_timeout_names_the_rank_that_has_not_come(rail: str) -> None:
    def body(group: Group, limit: timedelta) -> list[SlacklineError]:
        reduce(group, 3)
        return [told(lambda: reduce(group, 3, limit, blocking=False))] if group.rank < 2 else []

    def texts(limit: str) -> list[set[str]]:
        # The rank whose timeout passes first tells the other one, which then has the same text.
        either = {
            f"rank {rank}: all_reduce(sum, float32, 400 bytes) tag 3 sequence 1 Timed out after "
            f"{limit} (timeout {limit}) waiting for rank 2 (which has not posted it); of rank 2: "
            f"{KNOWN[rail]}"
            for rank in (0, 1)
        }
        return [either, either]

    for error in in_time(3, rail, body, texts):
        assert isinstance(error, OSError), "it is the builtin TimeoutError too"
        assert (error.tag, error.sequence) == (3, 1)


@pytest.mark.parametrize("rail", RAILS)
def test_a_receive_that_nobody_sends_to_times_out(rail: str) -> None:
    def body(group: Group, limit: timedelta) -> list[SlacklineError]:
        data = np.zeros(10, np.float32)
        at = data.ctypes.data

        def receive(peer: int | None) -> None:
            blocking = peer is not None
            group.recv(at, 10, DType.FLOAT32, peer, 4, timeout=limit, blocking=blocking).wait()

        return [told(partial(receive, peer)) for peer in (1, None) if group.rank == 0]

    def texts(limit: str) -> list[set[str]]:
        begin = f"rank 0: message(float32, 40 bytes) tag 4 sequence 0 Timed out after {limit}"
        of_one = f"rank 1 (which has not posted it); of rank 1: {KNOWN[rail]}"
        any_rank = "any rank, and none has sent a message with this tag"
        return [{f"{begin} (timeout {limit}) waiting for {each}"} for each in (of_one, any_rank)]

    in_time(2, rail, body, texts)


def test_a_wait_may_give_up_and_the_operation_goes_on() -> None:
    def body(group: Group) -> None:
        data = np.full(10, group.rank, np.float32)
        if group.rank == 0:
            posted = group.recv(data.ctypes.data, 10, DType.FLOAT32, 1, 4)
            with pytest.raises(
                TimeoutError, match=r"^the wait Timed out after 0:00:01; the operation goes"
            ):
                posted.wait(timedelta(seconds=1))
            group.barrier(blocking=True)
            posted.wait()
            assert (data == 1).all()
        else:
            group.barrier(blocking=True)
            group.send(data.ctypes.data, 10, DType.FLOAT32, 0, 4, blocking=True)

    run_ranks(2, body, options=NicOptions(rails=("shm",), arena_bytes=64 << 20, plan="direct"))

"""Tests of groups, transfers and queues that have forgotten the native objects of their engine."""

import ctypes
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from slackline import _native
from slackline.errors import ClosedError, PeerError, SlacklineError
from slackline.nic import Group, NativeGroup, Transfer
from slackline.nic._group import release_native_objects
from slackline.testing import run_ranks
from slackline.wire import DType, ReduceOp

SHORT = timedelta(milliseconds=1)
Left = tuple[NativeGroup, list[Transfer], Any]


def body(group: Group) -> Left:
    """Post a send, or receives of which one fails, and leave them in a queue."""
    assert isinstance(group, NativeGroup)
    memory = [ctypes.create_string_buffer(8) for _ in range(2)]
    queue = group.completion_queue()
    if group.rank == 1:
        sent = group.send(ctypes.addressof(memory[0]), 8, DType.UINT8, 0, 0)
        sent.wait()
        group.barrier(blocking=True)
        group.abort("no more")
        return group, [sent], queue
    received = [
        group.recv(ctypes.addressof(each), 8, DType.UINT8, peer, tag)
        for tag, (each, peer) in enumerate(zip(memory, (None, 1), strict=True))
    ]
    received[0].wait()
    for tag, each in enumerate(received):
        queue.add(each, (tag, memory))
    group.barrier(blocking=True)
    with pytest.raises(PeerError, match="no more"):
        received[1].wait()
    return group, received, queue


def results(transfers: list[Transfer]) -> list[Any]:
    """Return all that the transfers tell."""
    found: list[Any] = []
    for each in transfers:
        each.add_done_callback(partial(_note, found))
        found += [each.done(), each.source, each.ended_ns]
        try:
            each.wait(SHORT)
        except SlacklineError as error:
            found.append((type(error), str(error), error.rank, error.peer, error.tag))
    return found


def _note(found: list[Any], error: BaseException | None) -> None:
    found.append((type(error), str(error)))


@pytest.fixture
def left() -> list[Left]:
    return run_ranks(2, body)


def native_parts(one: object) -> list[object]:
    """Return the native objects that an object refers to by its own attributes."""
    names = getattr(type(one), "__slots__", None)
    names = vars(one) if names is None else names
    kinds = [kind for kind in vars(_native).values() if isinstance(kind, type)]
    return [each for name in names if type(each := getattr(one, name)) in kinds]


def test_all_answers_stay_and_no_native_object_does(left: list[Left]) -> None:
    transfers = [each for _, some, _ in left for each in some]
    queue = left[0][2]
    before = results(transfers)
    assert all(native_parts(each) for each in (left[0][1][1], queue, left[0][0]))
    release_native_objects()
    assert results(transfers) == before
    completions = {each.token[0]: each.error for each in queue.poll()}
    assert completions[0] is None
    assert isinstance(completions[1], PeerError)
    assert queue.wait(SHORT) == []
    for each in (*transfers, queue, *(group for group, _, _ in left)):
        assert native_parts(each) == []
    release_native_objects()  # A second call changes nothing.
    assert results(transfers) == before


CALLS: list[Callable[[Any], Any]] = [
    lambda group: group.all_reduce(0, 0, 1, DType.FLOAT32, ReduceOp.SUM),
    lambda group: group.barrier(),
    lambda group: group.send(0, 0, DType.UINT8, 1, 0),
    lambda group: group.lost(),
    lambda group: group.health(),
    lambda group: group.counters(),
    lambda group: group.link_reports(),
    lambda group: group.rail_names(),
    lambda group: group.plan_for(8),
    lambda group: group.completion_queue(),
    lambda group: group.allocate(8),
    lambda group: group.all_shared,
]


def test_a_group_without_its_engine_says_that_it_is_closed(left: list[Left]) -> None:
    release_native_objects()
    group, transfers, queue = left[0]
    assert (group.rank, group.size, group.timeout) == (0, 2, timedelta(seconds=20))
    for call in CALLS:
        with pytest.raises(ClosedError, match="is closed"):
            call(group)
    with pytest.raises(ClosedError, match="the engine is closed"):
        queue.add(transfers[0], None)
    group.abort("again")
    group.close()


def test_an_open_group_is_left_alone() -> None:
    def use(group: Group) -> int:
        pending = None
        memory = ctypes.create_string_buffer(8)
        if group.rank == 0:
            pending = group.recv(ctypes.addressof(memory), 8, DType.UINT8, 1, 0)
        release_native_objects()
        group.barrier(blocking=True)
        if pending is None:
            group.send(ctypes.addressof(memory), 8, DType.UINT8, 0, 0).wait()
        else:
            pending.wait()
        return len(group.counters())

    assert all(run_ranks(2, use))

"""Tests that operations without any usable rail (path to a peer) end with a typed error when their
timeout passes, not later."""

import threading
from datetime import timedelta

import numpy as np
import pytest
from matrix_table import RAILS

from slackline.errors import LinkError, SlacklineError, TimeoutError
from slackline.nic import Group
from slackline.testing import run_ranks
from slackline.wire import DType

LIMIT, PATIENCE = timedelta(seconds=2), timedelta(seconds=60)
QUICK_RAILS = ("shm", "tcp")


def exchange(
    group: Group, peer: int, tag: int, count: int, timeout: timedelta | None = None
) -> None:
    outgoing = np.full(count, group.rank, np.float32)
    incoming = np.zeros(count, np.float32)
    get = group.recv(incoming.ctypes.data, count, DType.FLOAT32, peer, tag, timeout=timeout)
    put = group.send(outgoing.ctypes.data, count, DType.FLOAT32, peer, tag, timeout=timeout)
    get.wait()
    put.wait()
    assert (incoming == peer).all()


def until_it_fails(group: Group, both_know: threading.Barrier) -> SlacklineError | None:
    """Exchange messages between ranks 0 and 1 until their link fails, while rank 2 can always reach
    both. Ranks 0 and 1 may fail at different times; rank 2 must not report an error then."""
    error = None
    while group.rank < 2 and error is None:
        try:
            exchange(group, 1 - group.rank, 1, 50_000)
        except SlacklineError as caught:
            error = caught
    for peer in (0, 1) if group.rank == 2 else (2,):
        exchange(group, peer, 2, 1000, PATIENCE)
    both_know.wait(60)  # no rank has closed yet
    return error


def check(rail: str) -> None:
    options = RAILS[rail].options(faults="link 0-1 down from 2s", timeout=LIMIT)
    both_know = threading.Barrier(3)
    results = run_ranks(3, lambda group: until_it_fails(group, both_know), options=options)
    assert results[2] is None
    for rank, error in enumerate(results[:2]):
        assert isinstance(error, LinkError | TimeoutError), repr(error)
        assert " Timed out after 2 s (timeout 2 s) waiting for " in str(error)
        assert error.peer == 1 - rank


@pytest.mark.parametrize("rail", QUICK_RAILS)
def test_a_link_that_is_down_for_good_costs_the_operations_that_need_it(rail: str) -> None:
    check(rail)


@pytest.mark.slow
@pytest.mark.parametrize("rail", [rail for rail in RAILS if rail not in QUICK_RAILS])
def test_a_link_of_several_rails_that_is_down_for_good_does_too(rail: str) -> None:
    check(rail)

"""Tests of strangers: peers that are in no group any more and were never connected.

Ranks are threads of this process, each with a nic of its own.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial

import numpy as np
import pytest

from slackline.nic import Group, NativeNic, NicOptions
from slackline.nic.collectives._plans import first_peers
from slackline.nic.connect import _links
from slackline.nic.connect._links import Links
from slackline.testing import MemoryStore
from slackline.wire import DType, ReduceOp

LIMIT = timedelta(seconds=40)
RANKS = 5
LOW, HIGH = 0, 2
"""Two ranks that a new group does not connect."""


def new_nic() -> NativeNic:
    return NativeNic(NicOptions(arena_bytes=32 << 20, rails=("tcp",)))


def together(count: int, body: Callable[[int], object]) -> None:
    """Run `body` in `count` threads, and raise the first error."""
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(body, range(count)))


def opened(nics: list[NativeNic]) -> list[Group]:
    """Open a group whose ranks are the places of the nics; check an all_reduce."""
    store, groups = MemoryStore(), dict[int, Group]()

    def body(rank: int) -> None:
        group = nics[rank].open_group(store, rank, len(nics), timeout=LIMIT)
        values = np.full(33, rank + 1, np.float32)
        at = values.ctypes.data
        group.all_reduce(at, at, values.size, DType.FLOAT32, ReduceOp.SUM, blocking=True)
        assert (values == len(nics) * (len(nics) + 1) / 2).all()
        groups[rank] = group

    together(len(nics), body)
    return [groups[rank] for rank in range(len(nics))]


def close_all(parts: Sequence[Group | NativeNic]) -> None:
    """Close groups or nics at the same time."""
    together(len(parts), lambda place: parts[place].close())


def links_of(nic: NativeNic) -> Links:
    links = nic._network._links
    assert links is not None
    return links


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        threading.Event().wait(0.005)


def left(nics: list[NativeNic]) -> bool:
    """Return whether these nics know that all their groups are closed."""
    return not any(links_of(nic)._groups for nic in nics)


def only_strangers(links: Links) -> bool:
    """Return whether a nic has left all groups, and keeps strangers alone."""
    return not links._groups and set(links._peers.values()) == set(links._strangers)


@pytest.fixture
def nics() -> Iterator[list[NativeNic]]:
    made = [new_nic() for _ in range(RANKS)]
    yield made
    close_all(made)


def test_the_oldest_strangers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_links, "_MOST_STRANGERS", 3)
    lasting = new_nic()
    try:
        for change in range(4):
            others = [new_nic() for _ in range(RANKS - 1)]
            close_all(opened([lasting, *others]))
            close_all(others)
            links = links_of(lasting)
            unmet = RANKS - 1 - len(first_peers(0, RANKS))
            until(partial(only_strangers, links))
            assert len(links._strangers) == min(3, (change + 1) * unmet)
            assert len(links._roles) == max(0, (change + 1) * unmet - 3)
    finally:
        lasting.close()


@pytest.mark.parametrize("forgetful", [(LOW,), (HIGH,), (LOW, HIGH)])
def test_a_forgotten_peer_comes_back_in_its_role(
    nics: list[NativeNic], monkeypatch: pytest.MonkeyPatch, forgetful: tuple[int, ...]
) -> None:
    assert HIGH not in first_peers(LOW, RANKS)
    groups = opened(nics)
    for most in (0, 64):
        monkeypatch.setattr(_links, "_MOST_STRANGERS", most)
        who = [rank for rank in range(RANKS) if (rank in forgetful) == (most == 0)]
        close_all([groups[rank] for rank in who])
        until(partial(left, [nics[rank] for rank in who]))
    for one, other in ((LOW, HIGH), (HIGH, LOW)):
        known = nics[other].identity in links_of(nics[one])._peers
        assert known is (one not in forgetful)

    # By their ranks in this group the two would dial the other way round.
    again = opened(nics[::-1])[::-1]

    def message(rank: int) -> None:
        if rank not in (LOW, HIGH):
            return
        values = np.full(10, rank, np.int32)
        group, peer = again[rank], again[LOW + HIGH - rank].rank
        act = group.send if rank == LOW else group.recv
        act(values.ctypes.data, values.size, DType.INT32, peer, 5, blocking=True)
        assert (values == LOW).all()

    together(RANKS, message)
    close_all(again)

"""Tests of links that a group makes when an operation needs them: ranks as threads over real
engines."""

import itertools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import numpy as np
import pytest

from slackline.errors import LinkError, PeerError
from slackline.nic import Group, NicOptions
from slackline.nic.collectives._plans import first_peers
from slackline.nic.connect._paths import plan_rails
from slackline.testing import MemoryStore, run_ranks
from slackline.wire import DType, ReduceOp

RANKS = 12
LOW, HIGH = 0, 6
"""Two ranks that are not next to each other in the ring of a new group."""
SMALL = 64 << 20
TAG = 5


def options(rail: str) -> NicOptions:
    return NicOptions(rails=(rail,), arena_bytes=SMALL)


def run(body: Callable[[Group], Any], rail: str) -> list[Any]:
    patience = timedelta(seconds=40)
    return run_ranks(RANKS, body, options=options(rail), timeout=patience)


def links_of(group: Group, rail: str) -> int:
    """Return the number of links of the rank's engine that have a rail."""
    return group.counters()["shm_links" if rail == "shm" else f"{rail}_rails"]


def links_at_the_end(group: Group, rail: str) -> int:
    """Return the number of links with a rail when all ranks have finished.

    No rank closes its group before all ranks have counted their links.
    """
    group.barrier(blocking=True)
    found = links_of(group, rail)
    group.barrier(blocking=True)
    return found


def message(group: Group, peer: int, values: Any, *, receives: bool) -> None:
    act = group.recv if receives else group.send
    act(values.ctypes.data, values.size, DType.INT32, peer, TAG, blocking=True)


@pytest.mark.parametrize("ranks", [1, 2, 4, 5, 8, 12, 31, 64, 1000])
def test_first_links_join_each_rank_to_two_others_and_all_even_without_one(ranks: int) -> None:
    peers = [first_peers(rank, ranks) for rank in range(ranks)]
    assert all(rank in peers[other] for rank in range(ranks) for other in peers[rank])
    assert {len(each) for each in peers} == {ranks - 1 if ranks <= 4 else 2}
    for lost in range(min(ranks, 20)):
        reached, fresh = {lost}, {(lost + 1) % ranks}
        while fresh:
            reached |= fresh
            fresh = set(itertools.chain.from_iterable(peers[rank] for rank in fresh)) - reached
        assert reached == set(range(ranks))


@pytest.mark.parametrize("rail", ["shm", pytest.param("tcp", marks=pytest.mark.slow)])
def test_a_new_group_connects_a_ring_and_its_first_collectives_need_no_more(rail: str) -> None:
    def body(group: Group) -> int:
        group.barrier(blocking=True)
        data = np.ones(1000, np.float32)
        at = data.ctypes.data
        group.all_reduce(at, at, data.size, DType.FLOAT32, ReduceOp.SUM, blocking=True)
        assert (data == RANKS).all()
        group.broadcast(at, data.size, DType.FLOAT32, 7, blocking=True)
        gathered = np.zeros(RANKS, np.int32)
        own = np.array([group.rank * 7], np.int32)
        targets = [gathered.ctypes.data + 4 * rank for rank in range(RANKS)]
        group.all_gather(own.ctypes.data, targets, [1] * RANKS, DType.INT32, blocking=True)
        assert (gathered == np.arange(RANKS) * 7).all()
        return links_at_the_end(group, rail)

    assert run(body, rail) == [2] * RANKS


@pytest.mark.parametrize("rail", ["tcp", pytest.param("shm", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("sender", "receiver"), [(LOW, HIGH), (HIGH, LOW)])
def test_a_message_makes_the_link_that_it_needs_before_the_peer_receives(
    rail: str, sender: int, receiver: int
) -> None:
    counted, sent = threading.Event(), threading.Event()

    def body(group: Group) -> int:
        before = links_of(group, rail)
        if group.rank == sender:
            assert counted.wait(40)
            message(group, receiver, np.arange(10, dtype=np.int32), receives=False)
            sent.set()
        elif group.rank == receiver:
            counted.set()
            assert sent.wait(40)
            values = np.zeros(10, np.int32)
            message(group, sender, values, receives=True)
            assert (values == np.arange(10)).all()
        return links_at_the_end(group, rail) - before

    assert HIGH not in first_peers(LOW, RANKS)
    assert run(body, rail) == [int(rank in (LOW, HIGH)) for rank in range(RANKS)]


def test_the_rails_of_a_link_are_derived_when_the_link_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Count the derivations: at both ends of the five links of a ring, then of one further link."""
    ranks, derived, counts = 5, list[int](), list[int]()
    together = threading.Barrier(ranks, timeout=20)

    def counted(*ends: Any, **settings: Any) -> Any:
        derived.append(1)
        return plan_rails(*ends, **settings)

    def body(group: Group) -> None:
        for needed in (False, True):
            if needed and group.rank in (0, 2):
                values = np.zeros(1, np.int32)
                message(group, 2 - group.rank, values, receives=group.rank == 2)
            together.wait()
            if group.rank == 0:
                counts.append(len(derived))
            together.wait()

    monkeypatch.setattr("slackline.nic.connect._links.plan_rails", counted)
    run_ranks(ranks, body, options=options("tcp"), timeout=timedelta(seconds=20))
    assert counts == [10, 12]


def test_an_operation_without_a_path_to_its_peer_ends_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check the error of a receive over a link for which no rails are derived."""
    together = threading.Barrier(5, timeout=20)

    def body(group: Group) -> str:
        together.wait()
        if group.rank == 0:
            monkeypatch.setattr("slackline.nic.connect._links.plan_rails", lambda *_, **__: ())
            value = np.zeros(1, np.int32)
            with pytest.raises(LinkError) as error:
                group.recv(
                    value.ctypes.data,
                    1,
                    DType.INT32,
                    2,
                    TAG,
                    timeout=timedelta(seconds=2),
                    blocking=True,
                )
            return str(error.value)
        return ""

    text = run_ranks(5, body, options=options("tcp"), timeout=timedelta(seconds=20))[0]
    assert "no connection to it has been made (no rail leads to rank 2: no address" in text


@pytest.mark.parametrize("rail", ["shm", pytest.param("tcp", marks=pytest.mark.slow)])
def test_two_ranks_that_want_a_link_at_once_make_one(rail: str) -> None:
    together = threading.Barrier(2)

    def body(group: Group) -> int:
        before = links_of(group, rail)
        if group.rank in (LOW, HIGH):
            peer = LOW + HIGH - group.rank
            values = np.full(10, group.rank, np.int32)
            found = np.zeros(10, np.int32)
            together.wait()
            receiving = group.recv(found.ctypes.data, 10, DType.INT32, peer, TAG)
            message(group, peer, values, receives=False)
            receiving.wait()
            assert (found == peer).all()
        return links_at_the_end(group, rail) - before

    assert run(body, rail) == [int(rank in (LOW, HIGH)) for rank in range(RANKS)]


@pytest.mark.parametrize("rail", ["shm", pytest.param("tcp", marks=pytest.mark.slow)])
def test_later_plans_use_all_links_and_give_the_same_bits(rail: str) -> None:
    """Check sums that depend on the order of additions, which is rank order in shared memory."""

    def body(group: Group) -> tuple[set[bytes], int]:
        results = set()
        for _ in range(20):
            data = np.full(5000, 0.1 * (group.rank + 1), np.float32)
            at = data.ctypes.data
            group.all_reduce(at, at, data.size, DType.FLOAT32, ReduceOp.SUM, blocking=True)
            results.add(data.tobytes())
        for turn in range(20):
            gathered = np.zeros(RANKS, np.int32)
            own = np.array([group.rank * 7 + turn], np.int32)
            targets = [gathered.ctypes.data + 4 * rank for rank in range(RANKS)]
            group.all_gather(own.ctypes.data, targets, [1] * RANKS, DType.INT32, blocking=True)
            assert (gathered == np.arange(RANKS) * 7 + turn).all()
        return results, links_at_the_end(group, rail)

    found = run(body, rail)
    assert {links for _, links in found} == {RANKS - 1}
    assert all(results == found[0][0] for results, _ in found)
    if rail == "shm":
        assert len(found[0][0]) == 1


def test_a_second_group_uses_the_links_of_the_first_and_makes_those_that_it_needs() -> None:
    """Check a group of 3 ranks, two of which have no connection yet, beside the group of 12."""
    members = (LOW, 2, HIGH)
    store = MemoryStore(timeout=timedelta(seconds=40))

    def body(group: Group) -> tuple[int, int]:
        before = links_of(group, "shm")
        if group.rank in members:
            nic = cast(Any, group)._on_close.func.__self__
            second = nic.open_group(
                store, members.index(group.rank), 3, timeout=timedelta(seconds=40), members=members
            )
            data = np.ones(100, np.float32)
            at = data.ctypes.data
            second.all_reduce(at, at, data.size, DType.FLOAT32, ReduceOp.SUM, blocking=True)
            assert (data == 3).all()
            second.close()
        return before, links_at_the_end(group, "shm")

    found = run(body, "shm")
    for rank, (before, after) in enumerate(found):
        fresh = set(members) - {rank} - first_peers(rank, RANKS) if rank in members else set()
        assert after == before + len(fresh)


@pytest.mark.parametrize("rail", ["shm", "tcp"])
def test_a_rank_that_has_ended_is_reported_though_no_link_led_to_it(rail: str) -> None:
    """Check an engine that has closed before another rank's first message to it."""
    gone = threading.Event()
    aside = MemoryStore(timeout=timedelta(seconds=40))

    def body(group: Group) -> str:
        if group.rank == LOW:
            nic = cast(Any, group)._on_close.func.__self__
            group.close()
            nic.close()
            gone.set()
        elif group.rank == HIGH:
            assert gone.wait(40)
            with pytest.raises(PeerError, match=f"rank {LOW}|its process has ended") as caught:
                message(group, LOW, np.zeros(10, np.int32), receives=True)
            aside.set("seen", "")
            return str(caught.value)
        aside.get("seen")
        return ""

    assert run(body, rail)[HIGH]

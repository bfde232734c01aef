"""Tests of the agreement between surviving ranks, with ranks as threads and a store in memory."""

import threading
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

import pytest
from torch import distributed as dist

from slackline.backend import Membership
from slackline.elastic._agreement import RendezvousStore, agree
from slackline.errors import LinkError, PeerError, SlacklineError, TimeoutError

LONG_NS = 20_000_000_000

Outcome = tuple[Membership, SlacklineError | None]


def soon(ns: int = LONG_NS) -> int:
    return time.monotonic_ns() + ns


def seen_by(
    me: int, lost: Collection[int] | Callable[[], Collection[int]], size: int, store: Any
) -> Membership:
    return Membership(
        store=store,
        generation=0,
        me=me,
        members=tuple(range(size)),
        lost=lambda: frozenset(lost() if callable(lost) else lost),
    )


def all_agree(
    sights: list[Membership], *, least: int = 1, limit_ns: int = LONG_NS
) -> list[Outcome]:
    found: list[Outcome | None] = [None] * len(sights)

    def one(index: int) -> None:
        found[index] = agree(
            sights[index], least=least, deadline_ns=soon(limit_ns), call=lambda: None
        )

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(sights))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcomes = [outcome for outcome in found if outcome is not None]
    assert len(outcomes) == len(sights)
    return outcomes


@pytest.mark.parametrize("dead", [(1,), (0,), (0, 3), (0, 1, 3)])
def test_the_survivors_of_any_deaths_agree_on_themselves(dead: tuple[int, ...]) -> None:
    store = dist.HashStore()
    alive = [rank for rank in range(4) if rank not in dead]
    for after, error in all_agree([seen_by(rank, dead, 4, store) for rank in alive]):
        assert (after.members, after.generation, error) == (tuple(alive), 1, None)


def test_nobody_is_left_out_while_nobody_is_lost() -> None:
    store = dist.HashStore()
    for after, error in all_agree([seen_by(rank, (), 3, store) for rank in range(3)]):
        assert (after.members, error) == ((0, 1, 2), None)


def test_a_rank_that_dies_after_it_has_come_is_left_out_when_that_is_seen_in_time() -> None:
    store = dist.HashStore()
    store.set("slackline/generation/1/here/2", "")
    for after, error in all_agree([seen_by(rank, (2, 3), 4, store) for rank in (0, 1)]):
        assert (after.members, error) == ((0, 1), None)


def test_the_first_decision_counts_though_ranks_see_different_losses() -> None:
    store = dist.HashStore()
    sights = [seen_by(0, (1,), 2, store), seen_by(1, (0,), 2, store)]
    outcomes = all_agree(sights)
    (members,) = {after.members for after, _ in outcomes}
    assert members in ((0,), (1,))
    for after, error in outcomes:
        if after.me in members:
            assert error is None
        else:
            assert isinstance(error, PeerError)
            assert str(error) == (
                f"ranks {members} have closed ranks without rank {after.me}, which they had lost"
            )


def test_a_rank_that_does_not_come_is_named_to_all_and_may_come_the_next_time() -> None:
    store = dist.HashStore()
    sights = [seen_by(rank, (3,), 4, store) for rank in (0, 1)]
    outcomes = all_agree(sights, limit_ns=50_000_000)
    late, told = agree(seen_by(2, (3,), 4, store), least=1, deadline_ns=soon(), call=lambda: None)
    for after, error in (*outcomes, (late, told)):
        assert after.members == (0, 1, 2, 3)
        assert isinstance(error, TimeoutError)
        assert str(error) == "shrink Timed out: ranks that are not lost and did not come: 2"
        assert error.peer == 2
    again = all_agree([after for after, _ in outcomes] + [late])
    assert [(a.members, a.generation, e) for a, e in again] == [((0, 1, 2), 2, None)] * 3


def test_whoever_is_kept_elsewhere_is_called_once() -> None:
    store = dist.HashStore()
    calls: list[str] = []

    def call() -> None:
        calls.append("come")
        store.set("slackline/generation/1/here/1", "")

    after, error = agree(seen_by(0, (), 2, store), least=1, deadline_ns=soon(), call=call)
    assert (after.members, error, calls) == ((0, 1), None, ["come"])


def test_too_few_are_an_error_on_all() -> None:
    store = dist.HashStore()
    sights = [seen_by(rank, (2, 3), 4, store) for rank in (0, 1)]
    for _, error in all_agree(sights, least=3):
        assert isinstance(error, PeerError)
        assert str(error) == "only ranks (0, 1) are left, of at least 3 that were asked for"


def test_whoever_waits_for_the_others_to_open_learns_of_a_loss() -> None:
    lost: set[int] = set()
    membership = seen_by(0, lambda: lost, 3, dist.HashStore())
    rendezvous = RendezvousStore(membership, soon())
    waiting = threading.Timer(0.05, lost.add, (2,))
    waiting.start()
    with pytest.raises(PeerError, match=r"^rank 2 was lost too$") as caught:
        rendezvous.get("slackline/rank/2")
    assert caught.value.peer == 2
    waiting.join()


def test_whoever_waits_for_the_others_to_open_follows_those_who_have_gone_on() -> None:
    store = dist.HashStore()
    membership = seen_by(0, (), 3, store)
    store.set("slackline/generation/1/begun", "")
    with pytest.raises(PeerError, match=r"^another rank was lost meanwhile$"):
        RendezvousStore(membership, soon()).get("key")


def test_whoever_waits_for_the_others_to_open_waits_no_longer_than_agreed() -> None:
    rendezvous = RendezvousStore(seen_by(1, (), 3, dist.HashStore()), soon(20_000_000))
    with pytest.raises(TimeoutError, match=r"the ranks \(0, 1, 2\) did not all open their group$"):
        rendezvous.get("key")


def test_a_store_that_is_gone_is_a_link_error() -> None:
    server = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, 1, timeout=timedelta(seconds=2))
    del server
    with pytest.raises(LinkError, match="must outlive every rank, as torchrun's store does"):
        agree(seen_by(1, (0,), 2, client), least=1, deadline_ns=soon(), call=lambda: None)

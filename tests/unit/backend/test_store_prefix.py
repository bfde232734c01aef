"""Tests that ranks find each other on a store that earlier ranks have used."""

import threading
import time
from datetime import timedelta

import pytest
from torch import distributed as dist

from slackline.backend._store_prefix import agree_on_prefix
from slackline.errors import TimeoutError

LIMIT = timedelta(seconds=20)


def soon(limit: timedelta = LIMIT) -> float:
    return time.monotonic() + limit.total_seconds()


def live(store: dist.Store, size: int) -> list[str]:
    found = [""] * size

    def one(rank: int) -> None:
        found[rank] = agree_on_prefix(store, rank, size, soon())

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_life_has_a_place_of_its_own_that_all_its_ranks_know(size: int) -> None:
    store = dist.HashStore()
    places = [set(live(store, size)) for _ in range(3)]
    assert [len(place) for place in places] == [1, 1, 1]
    assert len(set.union(*places)) == 3


def test_lives_of_other_sizes_and_lives_that_began_in_vain_leave_no_trap() -> None:
    store = dist.HashStore()
    assert len(set(live(store, 4))) == 1
    store.set("slackline/rank/1", "came alone")
    store.set("slackline/rank/2", "came too")
    store.set("slackline/here/a rank 0 that died/2", "came too")
    assert len(set(live(store, 3))) == 1
    assert len(set(live(store, 5))) == 1


def test_rank_0_answers_every_rank_while_one_is_still_missing() -> None:
    store = dist.HashStore()
    store.set_timeout(LIMIT)
    store.set("slackline/rank/1", "of an earlier life")
    found: dict[int, str] = {}

    def one(rank: int) -> None:
        found[rank] = agree_on_prefix(store, rank, 3, soon())

    early = [threading.Thread(target=one, args=(rank,)) for rank in (0, 2)]
    for thread in early:
        thread.start()
    name = store.get("slackline/rank/2").decode()
    leader = store.get(f"slackline/to/{name}").decode()
    assert not store.check([f"slackline/all/{leader}"])
    one(1)
    for thread in early:
        thread.join()
    assert found == dict.fromkeys(range(3), f"slackline/life/{leader}")


def test_a_rank_of_an_earlier_life_is_not_taken_for_one_of_this() -> None:
    store = dist.HashStore()
    live(store, 2)
    limit = timedelta(milliseconds=50)
    with pytest.raises(TimeoutError, match=r": rank 0 waits for rank 1$"):
        agree_on_prefix(store, 0, 2, soon(limit))

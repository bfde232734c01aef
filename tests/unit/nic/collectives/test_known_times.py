"""Times of plans that survive the group which measured them: all ranks choose equally by them."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from slackline.nic import NicOptions
from slackline.nic.collectives import KnownTimes, PlanBook
from slackline.plan.collective import Collective
from slackline.wire import DType, ReduceOp

SIZES = (0, 64, 4 << 10, 1 << 20, 64 << 20)
SUM = DType.FLOAT32, ReduceOp.SUM


def books(ranks: int, *, shared: bool = False) -> list[PlanBook]:
    hosts = "a" * ranks if shared else range(ranks)
    return [
        PlanBook(rank, ranks, NicOptions(), all_shared=shared, hosts=hosts) for rank in range(ranks)
    ]


def taught(known: Sequence[KnownTimes], group: Sequence[PlanBook]) -> list[bool]:
    """Teach all ranks of a group at once; return what each rank's call returned."""
    offered: list[Sequence[int]] = [()] * len(group)
    met = Barrier(len(group), timeout=60)

    def agree(rank: int) -> Callable[[Sequence[int]], Sequence[int]]:
        def largest(values: Sequence[int]) -> list[int]:
            offered[rank] = values
            met.wait()
            return [max(each) for each in zip(*offered, strict=True)]

        return largest

    with ThreadPoolExecutor(len(group)) as pool:
        calls = [
            pool.submit(known[rank].teach, book, agree(rank)) for rank, book in enumerate(group)
        ]
        return [call.result() for call in calls]


def measured(group: Sequence[PlanBook], known: Sequence[KnownTimes], draw: random.Random) -> None:
    """Have the ranks of a group measure times, the same on all ranks as the engine's are."""
    times = [draw.randrange(1_000, 50_000_000) for _ in range(2 * len(group[0].timed()))]
    for book, mine in zip(group, known, strict=True):
        book.learn_timed(times)
        mine.note(book, times)


def chosen(book: PlanBook) -> list[tuple[str, str]]:
    picked = [book.all_reduce(nbytes, *SUM) for nbytes in SIZES]
    picked += [book.select(Collective.ALL_TO_ALL, nbytes, DType.FLOAT32) for nbytes in SIZES]
    return [(each.name, each.reason) for each in picked]


def test_a_first_group_knows_nothing() -> None:
    group = books(3)
    assert taught([KnownTimes() for _ in group], group) == [False] * 3


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("ranks", [2, 4, 5, 9])
def test_a_group_of_the_same_size_chooses_as_the_earlier_one(ranks: int, shared: bool) -> None:
    known = [KnownTimes() for _ in range(ranks)]
    first = books(ranks, shared=shared)
    measured(first, known, random.Random(ranks))
    # A rank has come new, in another's place.
    known[1] = KnownTimes()
    second = books(ranks, shared=shared)
    assert all(taught(known, second))
    for earlier, later in zip(first, second, strict=True):
        assert chosen(later) == chosen(earlier)


def test_a_group_of_another_size_chooses_by_the_cost_model() -> None:
    known = [KnownTimes() for _ in range(4)]
    measured(books(4), known, random.Random(1))
    three = books(3)
    assert all(taught(known[:3], three))
    for book in three:
        assert "as the cost model expects" in book.all_reduce(1 << 20, *SUM).reason


def test_times_of_shared_memory_say_nothing_of_a_network() -> None:
    known = [KnownTimes() for _ in range(3)]
    measured(books(3, shared=True), known, random.Random(1))
    assert not any(taught(known, books(3)))


def test_the_shapes_of_the_last_group_have_their_plans_before_the_first_operation() -> None:
    known = [KnownTimes() for _ in range(3)]
    first = books(3)
    measured(first, known, random.Random(1))
    for book in first:
        book.all_reduce(4 << 10, *SUM)
        book.select(Collective.BROADCAST, 4 << 10, DType.FLOAT32, root=2)
    made: list[str] = []
    two = [
        PlanBook(
            rank,
            2,
            NicOptions(),
            all_shared=False,
            hosts="ab",
            decide=lambda _subject, choice, _reason: made.append(choice),
        )
        for rank in range(2)
    ]
    assert all(taught(known[:2], two))
    assert len(made) == 2
    assert all("all_reduce of at most 4 KiB" in choice for choice in made)
    for book in two:
        book.all_reduce(4 << 10, *SUM)
    assert len(made) == 2


def test_a_group_in_which_all_is_as_before_takes_over_compiled_plans() -> None:
    known = [KnownTimes() for _ in range(4)]
    measured(books(3), known[:3], random.Random(1))
    first = books(3)
    assert all(taught(known[:3], first))
    compiled = [book.all_reduce(4 << 10, *SUM).program for book in first]
    measured(books(4), known, random.Random(2))  # A group of another size in between.
    again = books(3)
    assert all(taught(known[:3], again))
    assert [book.all_reduce(4 << 10, *SUM).program for book in again] == compiled
    moved = books(3)
    assert all(taught(known[2::-1], moved))  # The first and the last have changed places.
    programs = [book.all_reduce(4 << 10, *SUM).program for book in moved]
    assert programs[1] is compiled[1]
    assert programs[0] is not compiled[2]
    assert programs[2] is not compiled[0]
    assert chosen(moved[0]) == chosen(again[0])


@pytest.mark.parametrize("seed", range(40))
def test_ranks_that_know_different_times_choose_equally(seed: int) -> None:
    """Draw a life of groups: members join, leave, and measure now and then."""
    draw = random.Random(seed)
    everyone = [KnownTimes() for _ in range(10)]
    members = draw.sample(everyone, draw.randint(2, 6))
    shared = draw.random() < 0.3
    for _ in range(12):
        group = books(len(members), shared=shared)
        answers = taught(members, group)
        assert len(set(answers)) == 1
        if not answers[0] or draw.random() < 0.3:
            measured(group, members, draw)
        for book in group[1:]:
            assert chosen(book) == chosen(group[0])
        members = draw.sample(everyone, draw.randint(2, 6))
        if draw.random() < 0.2:
            everyone[draw.randrange(10)] = KnownTimes()

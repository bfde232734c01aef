"""Ways to open groups, drawn by a seed: by several threads at once, in other orders on each rank.

Ranks are threads of this process, each with a nic of its own.
"""

import gc
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import pytest
from address_space import vast_bytes

from slackline.nic import Group, NativeNic, NicOptions
from slackline.testing import MemoryStore
from slackline.wire import DType, ReduceOp

LIMIT = timedelta(seconds=30)
SMALL = 32 << 20
"""The size of an arena."""


@dataclass(frozen=True)
class Way:
    """A drawn way to open groups: who opens which group, in which thread, in which order."""

    ranks: int
    groups: tuple[tuple[int, ...], ...]
    """The members of each group, by their ranks in the job."""
    turns: tuple[tuple[tuple[int, ...], ...], ...]
    """For each rank and each of its threads, the groups that the thread opens one after another."""
    rail: str
    keeps: bool
    """Whether a group of all ranks is open already."""
    unmapped: int
    """The rank whose memory is too large for the others to map, so that TCP replaces shared memory;
    -1 for none."""

    @staticmethod
    def drawn(seed: int) -> "Way":
        draw = random.Random(seed)
        ranks = draw.choice((2, 2, 3))
        groups = tuple(
            tuple(sorted(draw.sample(range(ranks), draw.randint(2, ranks)), reverse=False))
            for _ in range(draw.randint(2, 5))
        )
        turns = []
        for rank in range(ranks):
            mine = [number for number, group in enumerate(groups) if rank in group]
            draw.shuffle(mine)
            # Only rank 0 may open two groups one after another: the others open all at once, so
            # that no order of rank 0 can make the ranks wait in a circle.
            cut = draw.randint(0, len(mine)) if rank == 0 else 0
            turns.append(tuple(t for t in (tuple(mine[:cut]), *((m,) for m in mine[cut:])) if t))
        rail, keeps = draw.choice(("shm", "tcp")), draw.random() < 0.3
        unmapped = draw.choice((-1, draw.randrange(ranks))) if rail == "shm" else -1
        return Way(ranks, groups, tuple(turns), rail, keeps, unmapped)

    def options(self, rank: int) -> NicOptions:
        """Return the options of a rank's nic."""
        rails = (self.rail,) if self.unmapped < 0 else (self.rail, "tcp")
        return NicOptions(arena_bytes=vast_bytes() if rank == self.unmapped else SMALL, rails=rails)


def check_sum(group: Group) -> None:
    """Check an all_reduce of the group."""
    values = np.full(33, group.rank + 1, np.float32)
    at = values.ctypes.data
    group.all_reduce(at, at, values.size, DType.FLOAT32, ReduceOp.SUM, blocking=True)
    assert (values == group.size * (group.size + 1) / 2).all()


def together(bodies: list[Callable[[], None]]) -> list[BaseException]:
    """Run every body in a thread of its own; return the errors, once all threads have ended."""
    errors: list[BaseException] = []

    def run(body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + 2 * LIMIT.total_seconds()
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    assert not any(thread.is_alive() for thread in threads), "an opening goes beyond its timeout"
    return errors


@pytest.mark.parametrize(
    "seed", [1, 2, 6, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(7, 40))]
)
def test_openings_of_several_groups_do_not_wait_for_each_other(seed: int) -> None:
    way = Way.drawn(seed)
    stores = [MemoryStore() for _ in range(len(way.groups) + 1)]
    gc.collect()
    nics = [NativeNic(way.options(rank)) for rank in range(way.ranks)]

    def opens(rank: int, members: tuple[int, ...], store: MemoryStore) -> None:
        group = nics[rank].open_group(
            store, members.index(rank), len(members), timeout=LIMIT, members=members
        )
        check_sum(group)

    everyone = tuple(range(way.ranks))
    try:
        if way.keeps:
            first = [lambda r=r: opens(r, everyone, stores[-1]) for r in everyone]  # type: ignore[misc]
            assert together(first) == []
        bodies = []
        for rank, threads in enumerate(way.turns):
            for numbers in threads:

                def body(rank: int = rank, numbers: tuple[int, ...] = numbers) -> None:
                    for number in numbers:
                        opens(rank, way.groups[number], stores[number])

                bodies.append(body)
        assert together(bodies) == [], way
    finally:
        for nic in nics:
            nic.close()

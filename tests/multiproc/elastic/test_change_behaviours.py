"""The behaviours that torch expects of a group whose members change, over both doors: slackline's
own calls, and torch's where torch has them (2.14 and later)."""

import itertools
import os
from datetime import timedelta

import pytest
import torch
from torch import distributed as dist

from slackline import elastic
from slackline.errors import ClosedError, PeerError, TimeoutError, UsageError

HAS_TORCHS_DOOR = hasattr(dist, "_reconfigure")
LIMIT = timedelta(seconds=30)


class OwnDoor:
    """slackline.elastic.get_handle and reconfigure."""

    def __init__(self, store):
        self.handle = elastic.get_handle()

    def change(self, number, handles):
        elastic.reconfigure(str(number), handles, timeout=LIMIT)


class TorchsDoor:
    """torch.distributed._get_reconfigure_handle and _reconfigure."""

    def __init__(self, store):
        rank, size = dist.get_rank(), dist.get_world_size()
        dist.destroy_process_group()
        dist.init_process_group(
            "slackline", store=store, rank=rank, world_size=size, enable_reconfigure=True
        )
        assert dist._supports_reconfigure()
        self.handle = dist._get_reconfigure_handle()
        self.group = dist.group.WORLD
        with pytest.raises(UsageError, match="no connections before its first change"):
            dist.all_reduce(torch.ones(3))

    def change(self, number, handles):
        dist._reconfigure(number, handles, timeout=LIMIT).wait()
        assert dist.group.WORLD is self.group, "torch's object stays"


class Processes:
    """The processes of a test, by their first ranks, and their changes."""

    def __init__(self, door):
        store = dist.group.WORLD.get_group_store()
        self.me, self.count = dist.get_rank(), dist.get_world_size()
        self.store = dist.PrefixStore("processes", store)
        self.door = door(dist.PrefixStore("torch", store))
        self.store.set(f"handle {self.me}", self.door.handle)
        self.handles = [self.store.get(f"handle {each}").decode() for each in range(self.count)]
        self.meetings, self.numbers = itertools.count(), itertools.count()

    def meet(self):
        number = next(self.meetings)
        self.store.set(f"met {number} {self.me}", "")
        self.store.wait([f"met {number} {each}" for each in range(self.count)])

    def change(self, *lists):
        """Let the processes of each list be a group; check the ranks, and that the group works."""
        number = next(self.numbers)
        for place, members in enumerate(lists):
            if self.me in members:
                self.door.change(1000 * number + place, [self.handles[each] for each in members])
                assert dist.get_rank() == members.index(self.me)
                assert dist.get_world_size() == len(members)
                assert dist.get_process_group_ranks(None) == list(range(len(members)))
                works(members)
        self.meet()


def works(members):
    """Check sums, messages, and a functional collective."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (3, 1 << 18):
        tensor = torch.full((count,), rank + 1.0)
        dist.all_reduce(tensor)
        assert tensor.unique().tolist() == [size * (size + 1) / 2]
    functional = dist._functional_collectives.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    assert functional.tolist() == [size] * 3
    if size > 1:
        sent = dist.isend(torch.tensor([rank]), (rank + 1) % size)
        got = torch.empty(1, dtype=torch.int64)
        dist.recv(got, (rank - 1) % size)
        sent.wait()
        assert got.item() == (rank - 1) % size


def basic_then_collectives_and_messages(processes):
    processes.change([0, 1, 2])


def identity(processes):
    processes.change([0, 1, 2])
    processes.change([0, 1, 2])


def without_the_last(processes):
    processes.change([0, 1, 2])
    processes.change([0, 1])


def without_the_middle(processes):
    processes.change([0, 1, 2])
    processes.change([0, 2])


def each_alone_then_all_then_each_alone(processes):
    for lists in ([[0], [1], [2]], [[0, 1, 2]], [[0], [1], [2]]):
        processes.change(*lists)


def alone_to_all(processes):
    processes.change([1])
    processes.change([1, 0, 2])


def late_join(processes):
    processes.change([0, 1])
    processes.change([0, 1, 2])


def merge_of_two_groups(processes):
    processes.change([0, 1], [2])
    processes.change([2, 0, 1])


def after_an_abort(processes):
    processes.change([0, 1, 2])
    if processes.me == 1:
        dist.group.WORLD.abort()
        with pytest.raises((ClosedError, UsageError), match=r"is closed|was aborted"):
            dist.all_reduce(torch.ones(3))
    else:
        with pytest.raises(PeerError, match="aborted"):
            dist.all_reduce(torch.ones(3))
    processes.meet()
    processes.change([0, 1, 2])


def after_a_timeout(processes):
    """An operation that times out ends a group of torch's door; a change repairs either group."""
    processes.change([0, 1, 2])
    if processes.me == 0:
        dist.group.WORLD.set_timeout(timedelta(milliseconds=300))
        with pytest.raises(TimeoutError):
            dist.all_reduce(torch.ones(3))
        if isinstance(processes.door, TorchsDoor):
            with pytest.raises(UsageError, match="was aborted"):
                dist.all_reduce(torch.ones(3))
        dist.group.WORLD.set_timeout(LIMIT)
    processes.meet()
    if processes.me == 1 and isinstance(processes.door, TorchsDoor):
        with pytest.raises(PeerError, match="aborted"):
            dist.send(torch.ones(3), 0)
    processes.meet()
    processes.change([0, 1, 2])


def a_used_number(processes):
    processes.change([0, 1, 2])
    number = 1_000_000
    handles = processes.handles
    processes.door.change(number, handles)
    with pytest.raises(UsageError, match="already used"):
        processes.door.change(number, handles)
    works([0, 1, 2])
    processes.meet()


BEHAVIOURS = (
    *(basic_then_collectives_and_messages, identity, without_the_last, without_the_middle),
    *(each_alone_then_all_then_each_alone, alone_to_all, late_join, merge_of_two_groups),
    *(after_an_abort, after_a_timeout, a_used_number),
)
DOORS = {"own": OwnDoor, "torch": TorchsDoor}


def behave(rank, size):
    processes = Processes(DOORS[os.environ["DOOR"]])
    for behaviour in BEHAVIOURS:
        try:
            behaviour(processes)
        except BaseException as error:
            error.add_note(f"the behaviour is: {behaviour.__name__}")
            raise


@pytest.mark.parametrize(
    "door",
    [
        "own",
        pytest.param(
            "torch",
            marks=pytest.mark.skipif(not HAS_TORCHS_DOOR, reason="torch 2.14 has this door first"),
        ),
    ],
)
def test_members_change_as_torch_expects(job, door):
    job(3, behave, environment={"DOOR": door})


def sets_and_lone_groups(rank, size):
    processes = Processes(TorchsDoor)
    dist._reconfigure(1, set(processes.handles), timeout=LIMIT).wait()
    assert dist.get_rank() == sorted(processes.handles).index(processes.handles[processes.me])
    works(range(size))
    placed = elastic.reconfigure("by the other door", processes.handles)
    assert dist.group.WORLD is processes.door.group
    assert (placed.rank, placed.size) == (rank, size)
    works(range(size))


@pytest.mark.skipif(not HAS_TORCHS_DOOR, reason="torch 2.14 has this door first")
def test_a_set_of_handles_is_sorted_and_both_doors_change_one_group(job):
    job(2, sets_and_lone_groups)

"""Changes of members: processes leave, join, split and merge, and a change that fails changes
nothing."""

import dataclasses
import os
import signal
import threading
import time
from datetime import timedelta

import pytest
import torch
from torch import distributed as dist

from slackline import backend, elastic
from slackline.elastic._handle import open_door
from slackline.errors import LinkError, MismatchError, PeerError, TimeoutError, UsageError

SHORT = timedelta(seconds=1.5)
"""The timeout of changes that must fail by their timeout."""
WITHIN_S = 20.0
"""The time within which a change must have failed: a busy machine may be late by seconds."""


class Ranks:
    """The handles of all ranks of a test, and meetings of the ranks in whatever groups they are."""

    def __init__(self):
        self.me, size = dist.get_rank(), dist.get_world_size()
        self.store = dist.group.WORLD.get_group_store()
        self.store.set(f"handle {self.me}", elastic.get_handle())
        self.handles = [self.store.get(f"handle {rank}").decode() for rank in range(size)]
        self.met = 0

    def list(self, *ranks):
        return [self.handles[rank] for rank in ranks]

    def change(self, number, *ranks, **options):
        """Change to these ranks if this one is among them; check the place and some sums."""
        if self.me not in ranks:
            return
        placed = elastic.reconfigure(number, self.list(*ranks), **options)
        assert (placed.rank, placed.size) == (ranks.index(self.me), len(ranks))
        works()

    def meet(self):
        """Wait for all ranks, without the group."""
        self.met += 1
        self.store.set(f"met {self.met} {self.me}", "")
        self.store.wait([f"met {self.met} {rank}" for rank in range(len(self.handles))])


def works():
    """Check that the default group reduces short and long tensors, and sends messages."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (3, 1 << 18):
        tensor = torch.full((count,), rank + 1.0)
        dist.all_reduce(tensor)
        assert tensor.unique().tolist() == [size * (size + 1) / 2]
    if size > 1:
        tensor = torch.tensor([rank])
        sent = dist.isend(tensor, (rank + 1) % size)
        got = torch.empty_like(tensor)
        dist.recv(got, (rank - 1) % size)
        sent.wait()
        assert got.item() == (rank - 1) % size


def leave_and_join(rank, size):
    ranks = Ranks()
    operations = backend.counters()["operations"]
    ranks.change("the same", 0, 1, 2)
    assert ranks.store.get("handle 0").decode() == ranks.handles[0]
    ranks.change("without the last", 0, 1)
    ranks.change("it joins late", 0, 1, 2)
    ranks.change("without the middle", 0, 2)
    ranks.meet()
    ranks.change("in another order", 2, 0, 1)
    ranks.change(f"alone {rank}", rank)
    ranks.meet()
    ranks.change("together", 0, 1, 2)
    ranks.change("a part", 0, 1)
    ranks.change("the rest", 2)
    ranks.change("merged", 2, 1, 0)
    assert backend.counters()["operations"] > operations, "it is the same engine"


@pytest.mark.parametrize("rails", ["shm", "tcp"])
def test_ranks_leave_join_split_and_merge(job, rails):
    job(3, leave_and_join, environment={"SLACKLINE_RAILS": rails})


def from_nothing(rank, size):
    ranks = Ranks()
    dist.destroy_process_group()
    ranks.change("a process without a group", 0, 1)
    dist.destroy_process_group()
    ranks.change("again", 1, 0)
    sub = dist.new_group([0, 1])
    dist.barrier(sub)


def test_a_process_needs_no_group_before(job):
    job(2, from_nothing)


def repaired(rank, size):
    ranks = Ranks()
    late = dist.all_reduce(torch.ones(8), async_op=True) if rank == 0 else None
    ranks.meet()
    dist.group.WORLD.abort()
    if late is not None:
        with pytest.raises(RuntimeError):
            late.wait()
    ranks.change("after an abort", 0, 1)
    dist.group.WORLD.set_timeout(timedelta(milliseconds=300))
    if rank == 0:
        with pytest.raises(TimeoutError):
            dist.all_reduce(torch.ones(8))
    ranks.meet()
    ranks.change("after a timeout", 0, 1)


def test_a_change_repairs_a_group_that_was_aborted(job):
    job(2, repaired)


def wrong_lists(rank, size):
    ranks = Ranks()
    ranks.change("1", 0, 1)
    cases = {
        "already used": ("1", ranks.handles),
        "must not be empty": ("", ranks.handles),
        "lacks the handle of this process": ("2", ranks.list(1 - rank)),
        "is in the list twice, at 2 and 0": ("3", ranks.list(0, 1, 0)),
        "cut short": ("4", [ranks.handles[0][:-5], ranks.handles[1]]),
        "is no handle": ("5", ["10.0.0.1:29500", ranks.handles[rank]]),
        "has version '1'": ("6", [ranks.handles[0].replace("-2.", "-1."), ranks.handles[1]]),
    }
    for words, (number, handles) in cases.items():
        with pytest.raises(UsageError, match=words):
            elastic.reconfigure(number, handles)
    with pytest.raises(UsageError, match="timeout must be positive"):
        elastic.reconfigure("7", ranks.handles, timeout=timedelta())
    works()
    begun = time.monotonic()
    other = ranks.list(0, 1) if rank == 0 else [*ranks.list(0, 1), stranger()]
    with pytest.raises((MismatchError, PeerError, TimeoutError)) as caught:
        elastic.reconfigure("another list", other, timeout=SHORT)
    assert time.monotonic() - begun < WITHIN_S
    assert type(caught.value) is not TimeoutError or rank == 1, caught.value
    ranks.meet()
    works()
    ranks.change("a fresh number", 1, 0)


def stranger():
    """Return the handle of a process that does not live any more."""
    ended = dataclasses.replace(open_door().handle, name="f" * 16, addresses=("127.0.0.1",), port=9)
    return ended.encode()


def test_a_wrong_list_is_refused_and_changes_nothing(job):
    job(2, wrong_lists)


def absent(rank, size):
    ranks = Ranks()
    works()
    ranks.meet()
    begun = time.monotonic()
    if rank != 2:
        with pytest.raises(TimeoutError, match="waits for rank 2") as caught:
            elastic.reconfigure("one is late", ranks.handles, timeout=SHORT)
        assert caught.value.peer in (1 - rank, 2)  # The other rank may have begun long before.
        assert time.monotonic() - begun < WITHIN_S
    ranks.meet()
    works()
    if rank != 0:
        with pytest.raises((TimeoutError, LinkError)):
            elastic.reconfigure("the first is late", ranks.handles, timeout=SHORT)
    ranks.meet()
    works()
    if rank != 0:
        dead_first = [stranger(), *ranks.list(1, 2)]
        with pytest.raises(LinkError, match="cannot be reached"):
            elastic.reconfigure("a dead one first", dead_first, timeout=SHORT)
    ranks.change("all", 0, 1, 2)


def test_after_a_change_that_fails_the_old_group_is_as_it_was(job):
    job(3, absent)


def two_at_once(rank, size):
    """Begin a change while another thread's change waits for rank 1."""
    ranks = Ranks()
    if rank == 0:
        first = threading.Thread(target=elastic.reconfigure, args=("first", ranks.handles))
        first.start()
        open_door().connections.groups.wait(["slackline/change/first/slackline/rank/0"])
        with pytest.raises(UsageError, match="'second' begins while another one goes on"):
            elastic.reconfigure("second", ranks.handles)
        ranks.meet()
        first.join()
        works()
    else:
        ranks.meet()
        ranks.change("first", 0, 1)
    ranks.change("second", 0, 1)


def test_a_process_changes_its_group_once_at_a_time(job):
    job(2, two_at_once)


def shrunk(rank, size):
    """Let rank 2 die after a change; the first rank, whose store all use, lives on."""
    ranks = Ranks()
    ranks.change("before", 0, 1, 2)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerError):
        dist.barrier()
    assert elastic.shrink().size == 2
    works()
    ranks.change("after", 1, 0)


def test_a_group_that_was_changed_shrinks(job):
    job(3, shrunk, dying=(2,))


def one_dies(rank, size):
    ranks = Ranks()
    if rank == int(os.environ["VICTIM"]):
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises((PeerError, LinkError, TimeoutError)):
        elastic.reconfigure("with the dead", ranks.handles, timeout=SHORT)
    assert time.monotonic() - begun < WITHIN_S
    left = [each for each in range(size) if each != int(os.environ["VICTIM"])]
    ranks.change("without the dead", *left)


@pytest.mark.parametrize("victim", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_the_others_go_on_without_a_member_that_died(job, victim):
    job(3, one_dies, dying=(victim,), environment={"VICTIM": str(victim)})


def stopped(rank, size):
    """Stop the process at whose door all meet, in the middle of a change."""
    ranks = Ranks()
    if rank == 0:
        ranks.store.set("process 0", str(os.getpid()))
        ranks.meet()  # Rank 1 stops this process, and continues it later.
    else:
        first = int(ranks.store.get("process 0"))
        os.kill(first, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            with pytest.raises(LinkError, match=r"does not answer|cannot be reached"):
                elastic.reconfigure("with a stopped one", ranks.list(0, 1), timeout=SHORT)
            assert time.monotonic() - begun < WITHIN_S
        finally:
            os.kill(first, signal.SIGCONT)
        ranks.meet()
    works()
    ranks.change("it goes on", 0, 1)


def test_a_process_that_is_stopped_holds_up_nobody_beyond_the_timeout(job):
    job(2, stopped)


def many(rank, size):
    ranks = Ranks()
    ranks.change("first", *range(size))

    def use():
        descriptors = len(os.listdir("/proc/self/fd"))
        threads = len(os.listdir("/proc/self/task"))
        return descriptors, threads

    before = None
    for number in range(int(os.environ["CHANGES"])):
        ranks.change(f"{number}", *range(size))
        if number == 9:
            before = use()
    after = use()
    assert after[0] <= before[0] + 2, (before, after)
    assert after[1] <= before[1] + 2, (before, after)


@pytest.mark.parametrize("changes", ["30", pytest.param("1000", marks=pytest.mark.slow)])
def test_many_changes_leave_nothing_behind(job, changes):
    job(2, many, environment={"CHANGES": changes})


def tidy(rank, size):
    """Look at the keys in the store of rank 0, where all changes but one meet."""
    ranks = Ranks()
    store, begun, counts = open_door().connections.groups, [], []

    def change(number, *members):
        begun.append(number)
        ranks.change(number, *members)

    def holds(*numbers):
        """Check which changes have keys, while no rank makes a change."""
        ranks.meet()
        if rank == 0:
            kept = [
                each for each in begun if store.check([f"slackline/change/{each}/slackline/rank/0"])
            ]
            assert kept == list(numbers)
            counts.append(store.num_keys())
        ranks.meet()

    for number in range(3):
        change(f"{number}", 0, 1, 2)
        holds(f"{number}")
    change("without the last", 0, 1)
    holds("2", "without the last")  # Rank 2 may still read the keys of its own change.
    begun.append("one is late")
    if rank == 0:
        with pytest.raises(TimeoutError):
            elastic.reconfigure(begun[-1], ranks.list(0, 1), timeout=SHORT)
    holds("2", "without the last", "one is late")
    change("again without it", 0, 1)
    holds("2", "again without it")
    ranks.change("another first", 1, 0)
    holds("2", "again without it")
    change("all", 0, 1, 2)
    holds("all")
    assert counts[:3] == counts[-1:] * 3 or rank > 0, counts


def test_the_store_keeps_no_keys_of_changes_that_all_members_have_ended(job):
    job(3, tidy)

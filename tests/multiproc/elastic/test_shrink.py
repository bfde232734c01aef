"""Tests in which a rank is killed: the other ranks learn of it at once and continue as a smaller
group."""

import os
import signal
import time
from datetime import timedelta

import pytest
import torch
from rank_marks import mark, wait_for_marks
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

import slackline
from slackline import backend, elastic
from slackline.elastic import _agreement
from slackline.errors import PeerError, TimeoutError, UsageError

SLOW = pytest.mark.slow
RAILS = ("tcp", pytest.param("shm", marks=SLOW))
QUICKLY_S = 15.0
"""The time within which ranks must learn of a loss: half of the operations' timeout of 30 s. A busy
machine may be late by seconds."""


def die():
    dist.group.WORLD.get_group_store().set("died", str(time.monotonic()))
    os.kill(os.getpid(), signal.SIGKILL)


def die_if(victim):
    """End the victims once every rank has called this function, so that no rank is still in an
    earlier operation."""
    mark("came to the end of a rank")
    if victim:
        wait_for_marks("came to the end of a rank", range(dist.get_world_size()))
        die()


def train(rank, wrap):
    """Train until a rank is lost. Rank 1 ends itself in the middle of its third step."""
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    wrapped = wrap(model, optimizer)
    for step in range(1_000_000):
        loss = wrapped(torch.ones(2, 64)).sum()
        if rank == 1 and step == 2:
            model[2].weight.register_hook(lambda _: die())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def ddp(model, optimizer):
    return DistributedDataParallel(model)


def reduce_for_ever(rank, **how):
    for step in range(1_000_000):
        if rank == 1 and step == 2:
            die()
        work = dist.all_reduce(torch.ones(1 << 18), **how)
        if work is not None:
            work.wait()


WAYS = {
    "blocking": reduce_for_ever,
    "async": lambda rank: reduce_for_ever(rank, async_op=True),
    "ddp": lambda rank: train(rank, ddp),
    "overlap": lambda rank: train(rank, slackline.overlap.DataParallel),
}


def lose_rank_1(rank, size):
    way = os.environ["WAY"]
    with pytest.raises(RuntimeError) as caught:
        WAYS[way](rank)
    died = float(dist.group.WORLD.get_group_store().get("died"))
    assert time.monotonic() - died < QUICKLY_S
    error = backend.failure_of(caught.value)
    assert type(error) is PeerError
    assert "the link to rank 1 " in str(error)
    assert " closed unexpectedly: " in str(error)
    if way != "ddp":  # torch's C++ code passes on only the text
        assert error is caught.value
        assert (error.rank, error.peer) == (rank, 1)
    shrunk = elastic.shrink()
    assert (shrunk.ranks, shrunk.lost) == ({0: 0, 2: 1, 3: 2}, (1,))


QUICK = (("shm", "blocking"), ("tcp", "async"), ("tcp", "ddp"), ("shm", "overlap"))


@pytest.mark.parametrize(
    ("rails", "way"),
    [
        pytest.param(rails, way, marks=[] if (rails, way) in QUICK else [SLOW])
        for rails in ("shm", "tcp")
        for way in WAYS
    ],
)
def test_every_survivor_is_told_at_once_who_died(job, way, rails):
    job(4, lose_rank_1, dying=(1,), environment={"WAY": way, "SLACKLINE_RAILS": rails})


def sums(expected):
    """Check short and long all_reduces, a broadcast and a message of the current group."""
    rank, size = dist.get_rank(), dist.get_world_size()
    assert size == expected
    for count in (3, 1 << 20):
        tensor = torch.full((count,), rank + 1.0)
        dist.all_reduce(tensor)
        assert tensor.unique().tolist() == [size * (size + 1) / 2]
    tensor = torch.tensor([rank])
    dist.broadcast(tensor, size - 1)
    assert tensor.item() == size - 1
    dist.send(tensor, (rank + 1) % size) if rank == 0 else dist.recv(tensor, rank - 1)
    if rank > 0:
        dist.send(tensor, (rank + 1) % size)
    else:
        dist.recv(tensor, size - 1)


def until_a_rank_is_lost():
    with pytest.raises(PeerError):
        reduce_for_ever(-1)


def go_on(rank, size):
    """End rank 0, and then the last of the remaining ranks."""
    old = dist.group.WORLD
    before = backend.counters()["operations"]
    sums(5)
    die_if(rank == 0)
    until_a_rank_is_lost()
    shrunk = elastic.shrink()
    assert shrunk == elastic.Shrunk(
        rank=rank - 1, size=4, ranks={1: 0, 2: 1, 3: 2, 4: 3}, lost=(0,)
    )
    assert (dist.get_rank(), dist.get_world_size()) == (shrunk.rank, 4)
    assert old is not dist.group.WORLD
    sums(4)
    half = dist.new_group([0, 2])
    if shrunk.rank in (0, 2):
        dist.barrier(half)
    die_if(rank == 4)
    until_a_rank_is_lost()
    shrunk = elastic.shrink()
    assert (shrunk.ranks, shrunk.lost) == ({0: 0, 1: 1, 2: 2}, (3,))
    sums(3)
    assert backend.counters()["operations"] > before, "it is the same engine"


@pytest.mark.parametrize("rails", RAILS)
def test_the_survivors_go_on_and_may_lose_another(job, rails):
    job(5, go_on, dying=(0, 4), environment={"SLACKLINE_RAILS": rails})


def two_at_once(rank, size):
    dist.barrier()
    die_if(rank in (1, 2))
    until_a_rank_is_lost()
    assert elastic.shrink().ranks == {0: 0, 3: 1}
    sums(2)


def test_two_may_die_at_once(job):
    job(4, two_at_once, dying=(1, 2))


def in_the_agreement(rank, size):
    dist.barrier()
    die_if(rank == 3)
    until_a_rank_is_lost()
    if rank == 1:  # this rank agrees, then dies before the others have opened their group
        _agreement.agree(
            dist.group.WORLD.membership,
            least=1,
            deadline_ns=time.monotonic_ns() + 20_000_000_000,
            call=lambda: None,
        )
        die()
    shrunk = elastic.shrink()
    assert (shrunk.ranks, shrunk.lost) == ({0: 0, 2: 1}, (1, 3))
    sums(2)


@pytest.mark.parametrize("rails", RAILS)
def test_one_may_die_while_the_others_agree(job, rails):
    job(4, in_the_agreement, dying=(1, 3), environment={"SLACKLINE_RAILS": rails})


def held_up(rank, size):
    store = dist.group.WORLD.get_group_store()
    dist.barrier()
    die_if(rank == 2)
    if rank == 1:
        store.wait(["gave up"])
        with pytest.raises(TimeoutError, match=r"did not come: 1$"):
            elastic.shrink()
    else:
        until_a_rank_is_lost()
        with pytest.raises(TimeoutError, match=r"did not come: 1$"):
            elastic.shrink(timeout=timedelta(milliseconds=300))
        store.set("gave up", "")
    assert elastic.shrink().ranks == {0: 0, 1: 1}
    sums(2)


def test_a_slow_survivor_ends_the_agreement_for_all_and_may_come_the_next_time(job):
    job(3, held_up, dying=(2,))


def wait_for_a_third(rank, size):
    dist.barrier()
    die_if(rank == 1)
    with pytest.raises(PeerError) as caught:
        dist.recv(torch.ones(1), {0: 2, 2: 1}[rank])
    assert "rank 1" in str(caught.value)
    assert elastic.shrink().ranks == {0: 0, 2: 1}
    sums(2)


@pytest.mark.parametrize("rails", RAILS)
def test_a_survivor_that_waits_for_another_survivor_is_called(job, rails):
    job(3, wait_for_a_third, dying=(1,), environment={"SLACKLINE_RAILS": rails})


def too_few(rank, size):
    dist.barrier()
    die_if(rank == 2)
    until_a_rank_is_lost()
    with pytest.raises(PeerError, match=r"^only ranks \(0, 1\) are left, of at least 3"):
        elastic.shrink(min_ranks=3)
    start = time.monotonic()
    dist.destroy_process_group()
    assert time.monotonic() - start < QUICKLY_S
    with pytest.raises(UsageError, match="there is no default process group"):
        elastic.shrink()
    dist.init_process_group(
        "slackline", init_method=f"file://{os.environ['SECOND']}", rank=rank, world_size=2
    )
    sums(2)


def test_a_broken_group_is_destroyed_at_once_and_init_works_again(job, tmp_path):
    job(3, too_few, dying=(2,), environment={"SECOND": str(tmp_path / "store")})


def without_a_loss(rank, size):
    with pytest.raises(UsageError, match=r"^timeout must be positive, not 0:00:00$"):
        elastic.shrink(timeout=timedelta())
    with pytest.raises(UsageError, match=r"^min_ranks must be positive, not 0$"):
        elastic.shrink(min_ranks=0)
    assert elastic.shrink().ranks == {0: 0, 1: 1}
    sums(2)


def test_nobody_needs_to_be_lost(job):
    job(2, without_a_loss)

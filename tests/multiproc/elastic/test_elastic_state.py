"""Tests of training state that outlives a rank: whole steps only, the latest state of all ranks,
and copies on disk."""

import os
import signal
import time

import pytest
import torch
from torch import distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import slackline
from slackline.elastic import ElasticState
from slackline.errors import PeerError, UsageError

STEPS = 12


def parts():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def one_step(model, optimizer, state, seed):
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(seed))
    functional.cross_entropy(model(x), torch.arange(8)).backward()
    optimizer.step()
    optimizer.zero_grad()
    state.commit()


def everything(model, optimizer):
    tensors = [tensor.clone() for tensor in model.state_dict().values()]
    for moments in optimizer.state_dict()["state"].values():
        tensors += [value.clone() for value in moments.values() if value is not None]
    return tensors


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def follow_the_latest(rank, size):
    model, optimizer = parts()
    state = ElasticState(model=model, optimizer=optimizer)
    for step in range(3 if rank == 1 else 2):
        one_step(model, optimizer, state, step)
    expected = everything(model, optimizer)
    if rank == 1:  # in the middle of the next step
        model(torch.randn(4, 8)).sum().backward()
        assert not same(everything(model, optimizer), expected), "statistics have moved"
    if rank == 2:  # rank 2 has begun a step but has not committed it
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    state.sync()
    assert state.step == 3
    assert all(parameter.grad is None for parameter in model.parameters())
    all_of_them = [None] * size
    dist.all_gather_object(all_of_them, everything(model, optimizer))
    assert all(same(theirs, all_of_them[1]) for theirs in all_of_them)
    if rank == 1:
        assert same(everything(model, optimizer), expected)
    optimizer.step()
    with pytest.raises(UsageError, match=r"^no rank holds a complete step: "):
        state.sync()


def test_ranks_follow_the_one_that_has_come_furthest(job):
    job(3, follow_the_latest)


def through_a_loss(rank, size):
    model, optimizer = parts()
    state = ElasticState(model=model, optimizer=optimizer)
    taken = []

    def train():
        ranks = dist.get_world_size()
        if os.environ["WRAPPER"] == "ddp":
            wrapped = DistributedDataParallel(model)
        else:
            wrapped = slackline.overlap.DataParallel(model, optimizer)
        try:
            while state.step < STEPS:
                if (rank, state.step) in ((1, 4), (2, 8)):
                    model[0].bias.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
                one_step(wrapped, optimizer, state, state.step)
                taken.append((state.step, ranks))
        finally:
            if isinstance(wrapped, slackline.overlap.DataParallel):
                wrapped.abandon()
        return "trained"

    assert state.run(train) == "trained"
    assert taken == [
        *((step, 4) for step in range(1, 5)),
        *((step, 3) for step in range(5, 9)),
        *((step, 2) for step in range(9, STEPS + 1)),
    ]
    plain, its_own = parts()
    for step in range(STEPS):
        one_step(plain, its_own, ElasticState(model=plain), step)
    for ours, alone in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, alone)


@pytest.mark.parametrize(
    ("rails", "wrapper"),
    [
        ("shm", "ddp"),
        ("tcp", "overlap"),
        pytest.param("shm", "overlap", marks=pytest.mark.slow),
        pytest.param("tcp", "ddp", marks=pytest.mark.slow),
    ],
)
def test_training_goes_on_through_two_losses_with_no_step_lost_or_redone(job, wrapper, rails):
    settings = {"WRAPPER": wrapper, "SLACKLINE_RAILS": rails}
    job(4, through_a_loss, dying=(1, 2), environment=settings)


def not_a_loss(rank, size):
    state = ElasticState(model=parts()[0])

    def train():
        raise ValueError("the user's own")

    with pytest.raises(ValueError, match=r"^the user's own$"):
        state.run(train)


def test_other_errors_are_the_callers(job):
    job(2, not_a_loss)


def save_at_a_loss(rank, size):
    folder = os.environ["FOLDER"]
    model, optimizer = parts()
    state = ElasticState(model=model, optimizer=optimizer)

    def train():
        with (
            state.saving(folder),
            slackline.overlap.DataParallel(model, optimizer) as wrapped,
        ):
            while True:
                if rank == 1 and state.step == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
                one_step(wrapped, optimizer, state, state.step)

    with pytest.raises(PeerError, match="the link to rank 1 "):
        train()
    later, its_optimizer = parts()
    restored = ElasticState(model=later, optimizer=its_optimizer)
    assert restored.load(folder)
    assert restored.step == 5
    assert same(everything(later, its_optimizer), everything(model, optimizer))


def test_survivors_that_give_up_have_saved_the_last_step(job, tmp_path):
    job(3, save_at_a_loss, dying=(1,), environment={"FOLDER": str(tmp_path)})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000000005.pt"]


def end_at_sigterm(rank, size):
    folder = os.environ["FOLDER"]
    model, optimizer = parts()
    state = ElasticState(model=model, optimizer=optimizer)
    before = signal.getsignal(signal.SIGTERM)
    start = time.monotonic()

    def train():
        with (
            state.saving(folder),
            slackline.overlap.DataParallel(model, optimizer) as wrapped,
        ):
            while True:
                if rank == 0 and state.step == 3:
                    if os.environ["WHEN"] == "step":  # too late to abandon the step
                        optimizer.register_step_post_hook(
                            lambda *_: os.kill(os.getpid(), signal.SIGTERM)
                        )
                    else:
                        os.kill(os.getpid(), signal.SIGTERM)
                one_step(wrapped, optimizer, state, state.step)

    with pytest.raises(SystemExit if rank == 0 else PeerError) as caught:
        train()
    if rank == 0:
        assert caught.value.code == 143
    assert time.monotonic() - start < 25, "not the timeout of operations, 30 s"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("when", "step"), [("between", 3), ("step", 4)])
def test_sigterm_ends_training_with_the_last_step_saved(job, tmp_path, when, step):
    job(2, end_at_sigterm, environment={"FOLDER": str(tmp_path), "WHEN": when})
    assert sorted(path.name for path in tmp_path.iterdir())[-1] == f"step-{step:012}.pt"

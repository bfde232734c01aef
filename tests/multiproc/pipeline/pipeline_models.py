"""Stages of every kind, and what goes wrong: what ranks do in the tests of both."""

import os
import queue
import signal
import sys
import threading
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parent))
from pipeline_work import CPU, WIDTH, alone, batch, part, same_bits, stages_of, steps

from slackline.backend import counters
from slackline.errors import SlacklineError
from slackline.pipeline import Schedule
from slackline.plan.pipeline import from_torch_csv, gpipe, one_each, vee

mse = nn.functional.mse_loss
CYCLE = "0F0,0I0,0W0,0F1,0I1,0W1\n1F1,1I1,1W1,1F0,1I0,1W0\n"


class Checkpointed(nn.Module):
    def __init__(self, index, reentrant):
        super().__init__()
        self.inner, self.reentrant = part(index), reentrant

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


class Half(nn.Module):
    """Mixed precision: inside in bfloat16, activations between stages in it too."""

    def __init__(self, index):
        super().__init__()
        self.inner = part(index)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x).bfloat16()


class Two(nn.Module):
    """Two outputs, one of them a view and one of integers, and a transposed one between stages."""

    def __init__(self, index):
        super().__init__()
        self.inner, self.first = part(index), index == 0

    def forward(self, x, mask=None):
        if self.first:
            mask = (x > 0).long()
        return (self.inner(x) * mask).t().contiguous().t(), mask


class Last(Two):
    def forward(self, x, mask):
        return super().forward(x, mask)[0]


def compiled(index):
    return torch.compile(part(index), backend="aot_eager")


def checkpointed(rank, size):
    for schedule in ("zb-h1", "1f1b"):
        for policy in ("fixed", "ready"):
            for reentrant in (False, True):
                steps(
                    rank,
                    size,
                    make=lambda index, reentrant=reentrant: Checkpointed(
                        index, reentrant and index > 0
                    ),
                    schedule=schedule,
                    policy=policy,
                    turns=2,
                )


def compiled_stages(rank, size):
    for policy in ("fixed", "ready"):
        steps(rank, size, make=compiled, schedule="zb-h1", policy=policy, turns=2)


def mixed_precision(rank, size):
    steps(rank, size, make=Half, schedule="zb-h1", turns=2, loss_fn=half_loss)


def half_loss(output, target):
    return mse(output.float(), target)


def several_outputs(rank, size):
    def make(index):
        return (Last if index == size - 1 else Two)(index)

    stage = PipelineStage(make(rank), rank, size, CPU)
    schedule = Schedule(stage, 4, mse, schedule="zb-h1")
    for turn in range(2):
        x, y = batch(turn, 8)
        stage.submod.zero_grad()
        schedule.step(*((x,) if rank == 0 else ()), target=y if rank == size - 1 else None)
        parts = [make(index) for index in range(size)]
        for a, b in zip(x.tensor_split(4), y.tensor_split(4), strict=True):
            values = (a,)
            for each in parts:
                found = each(*values)
                values = found if isinstance(found, tuple) else (found,)
            mse(values[0], b).backward()
        for parameter in parts[rank].parameters():
            parameter.grad.div_(4)
        same_bits(stage.submod, parts[rank])


def shapes_that_differ(rank, size):
    """Of any length, another one each time; over two steps lengths grow and shrink."""
    stages = stages_of(rank, size, vee(2 * size))
    schedule = Schedule(stages, 4, mse, schedule="auto", memory=3)
    for turn, lengths in enumerate([(3, 700, 1, 5), (900, 2, 1, 40), (1, 1, 1, 1), (5, 6, 7, 8)]):
        given = [batch(10 * turn + place, length) for place, length in enumerate(lengths)]
        for stage in stages:
            stage.submod.zero_grad()
        losses = []
        first = rank == 0
        outputs = schedule.step_microbatches(
            [x for x, _ in given] if first else None,
            targets=[y for _, y in given] if first else None,
            losses=losses,
        )
        parts = [part(index) for index in range(2 * size)]
        expected = alone(parts, given)
        for stage in stages:
            same_bits(stage.submod, parts[stage.stage_index])
        if first:
            assert [loss.item() for loss in losses] == [loss.item() for loss in expected]
            assert [len(each) for each in outputs] == list(lengths)


def uneven_microbatches(rank, size):
    for samples in (10, 7):
        steps(rank, size, count=4, samples=samples, turns=2, schedule="zb-h2")


def gradients_that_are_kept(rank, size):
    """Two steps without zero_grad between them: each adds its own mean."""
    stage = PipelineStage(part(rank), rank, size, CPU)
    schedule = Schedule(stage, 4, mse, schedule="1f1b")
    parts, sums = [part(index) for index in range(size)], None
    for turn in range(2):
        x, y = batch(turn, 8)
        schedule.step(*((x,) if rank == 0 else ()), target=y if rank == size - 1 else None)
        alone(parts, list(zip(x.tensor_split(4), y.tensor_split(4), strict=True)))
        found = [each.grad.clone() for each in parts[rank].parameters()]
        sums = found if sums is None else [a + b for a, b in zip(sums, found, strict=True)]
    for mine, total in zip(stage.submod.parameters(), sums, strict=True):
        assert mine.grad.numpy().tobytes() == total.numpy().tobytes()


def evaluation(rank, size):
    stage = PipelineStage(part(rank), rank, size, CPU)
    schedule = Schedule(stage, 4, mse, memory=2)
    x, y = batch(0, 8)
    for _ in range(2):
        schedule.step(*((x,) if rank == 0 else ()), target=y if rank == size - 1 else None)
        losses = []
        found = schedule.eval(*((x,) if rank == 0 else ()), target=y, losses=losses)
        if rank == size - 1:
            model = nn.Sequential(*(part(index) for index in range(size)))
            assert torch.equal(found, torch.cat([model(each) for each in x.tensor_split(4)]))
            assert not found.requires_grad
            assert len(losses) == 4


def told(call):
    try:
        call()
    except SlacklineError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def bad_terms(rank, size):
    """What is refused when the schedule is made, by every rank alike."""
    stage = PipelineStage(part(rank), rank, size, CPU)
    twice = PipelineStage(part(0), 0, size, CPU)
    odd = PipelineStage(part(rank), rank, size + 1, CPU)
    differing = 4 + rank

    return [
        told(lambda: Schedule(stage, 0, mse)),
        told(lambda: Schedule(part(0), 4, mse)),
        told(lambda: Schedule(stage, 4, mse, schedule="2f2b")),
        told(lambda: Schedule(stage, 4, mse, policy="eager")),
        told(lambda: Schedule(stage, 4, mse, memory=0)),
        told(lambda: Schedule(stage, 4, mse, memory=[4])),
        told(lambda: Schedule(stage, 4, mse, schedule="gpipe", memory=2)),
        told(lambda: Schedule(stage, 4, mse, schedule="zb-v")),
        told(lambda: Schedule(stage, 4, mse, schedule=gpipe(size + 1, 4))),
        told(lambda: Schedule(stage, 5, mse, schedule=gpipe(size, 4))),
        told(lambda: Schedule(stage, 2, mse, schedule=from_torch_csv(CYCLE))),
        told(lambda: Schedule(twice, 4, mse)),
        told(lambda: Schedule(odd, 4, mse)),
        told(lambda: Schedule(stage, differing, mse)),
    ]


def bad_steps(rank, size, what):
    """What ends a step on one rank ends it on all."""
    module = part(rank)
    if what == "shape" and rank == 1:
        module = nn.Linear(WIDTH + 1, WIDTH)
    stage = PipelineStage(module, rank, size, CPU)
    loss_fn = (lambda output, target: output) if what == "loss" else mse
    schedule = Schedule(stage, 4, loss_fn, schedule="1f1b")
    for samples in (8, 3) if what == "few" else (8, 8):
        x, y = batch(0, samples)[0], batch(0, 8)[1]
        given = (x,) if rank == 0 and (what != "none" or not schedule.records) else ()
        try:
            schedule.step(*given, target=y if rank == size - 1 else None)
        except RuntimeError as error:
            found = f"{type(error).__name__}: {error}"
            return [found, getattr(error, "__notes__", []), told(lambda: schedule.step())]
    return "nothing"


def few_samples(rank, size):
    return bad_steps(rank, size, "few")


def no_inputs(rank, size):
    return bad_steps(rank, size, "none")


def wrong_shape(rank, size):
    return bad_steps(rank, size, "shape")


def wrong_loss(rank, size):
    return bad_steps(rank, size, "loss")


class Dying(nn.Module):
    def __init__(self, index, when):
        super().__init__()
        self.inner, self.left = part(index), when

    def forward(self, x):
        self.left -= 1
        if self.left < 0:
            os._exit(1)
        return self.inner(x)


def a_rank_dies(rank, size):
    """Rank 1 ends in the middle of the second step; what the others are told."""
    module = Dying(rank, 10) if rank == 1 else part(rank)
    schedule = Schedule(PipelineStage(module, rank, size, CPU), 8, mse, schedule="1f1b")
    x, y = batch(0, 16)
    try:
        for _ in range(3):
            schedule.step(*((x,) if rank == 0 else ()), target=y if rank == size - 1 else None)
    except SlacklineError as error:
        return type(error).__name__
    return "nothing"


def many_steps(rank, size):
    """Long enough for a rail to be cut in the middle of a step."""
    steps(rank, size, samples=256, turns=25, schedule="auto", placement=one_each(size))
    return counters()["rails_lost"] + counters()["rails_suspected"]


def interrupted(rank, size, store):
    """Rank 1 is interrupted as by Ctrl-C while the others wait for it."""
    dist.init_process_group("slackline", init_method=f"file://{store}", rank=rank, world_size=size)
    module = Interrupted(rank) if rank == 1 else part(rank)
    schedule = Schedule(PipelineStage(module, rank, size, CPU), 8, mse, schedule="zb-h1")
    x, y = batch(0, 16)
    try:
        schedule.step(*((x,) if rank == 0 else ()), target=y if rank == size - 1 else None)
    except (SlacklineError, KeyboardInterrupt) as error:
        return type(error).__name__
    return "nothing"


class Interrupted(nn.Module):
    """Interrupts its process, whose main thread then waits for messages that do not come."""

    def __init__(self, index):
        super().__init__()
        self.inner, self.left = part(index), 3

    def forward(self, x):
        self.left -= 1
        if self.left == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            queue.SimpleQueue().get(timeout=20)
        return self.inner(x)


def waits_and_is_interrupted(rank, size, store):
    """Rank 0 never sends; rank 1 stands in its wait when it is interrupted."""
    dist.init_process_group("slackline", init_method=f"file://{store}", rank=rank, world_size=size)
    schedule = Schedule(PipelineStage(part(rank), rank, size, CPU), 8, mse, schedule="zb-h1")
    if rank == 0:
        try:
            dist.recv(torch.zeros(1), 1)
        except SlacklineError as error:
            return type(error).__name__
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        schedule.step(target=batch(0, 16)[1])
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    return "nothing"


def on_gloo(rank, size, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    found = told(lambda: Schedule(PipelineStage(part(rank), rank, size, CPU), 8, mse))
    dist.destroy_process_group()
    return found

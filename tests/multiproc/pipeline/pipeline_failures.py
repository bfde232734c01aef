"""Functions of ranks in pipelines that fail. Each one returns the error that the rank received."""

import os
import queue
import signal
import threading
from datetime import timedelta

import torch
from pipeline_work import CPU, WIDTH, batch, part, steps, told
from rank_marks import mark, wait_for_marks
from torch import distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

from slackline.errors import SlacklineError
from slackline.pipeline import Schedule, ScheduleConfig
from slackline.plan.pipeline import from_torch_csv, gpipe

mse = nn.functional.mse_loss
CYCLE = "0F0,0I0,0W0,0F1,0I1,0W1\n1F1,1I1,1W1,1F0,1I0,1W0\n"


def bad_terms(rank, size):
    """Return the errors of wrong settings, which every rank refuses when the schedule is
    created."""
    stage = PipelineStage(part(rank), rank, size, CPU)
    twice = PipelineStage(part(0), 0, size, CPU)
    odd = PipelineStage(part(rank), rank, size + 1, CPU)
    differing = 4 + rank

    return [
        told(lambda: Schedule(stage, 0, mse)),
        told(lambda: Schedule(part(0), 4, mse)),
        told(lambda: Schedule(stage, 4, mse, schedule="2f2b")),
        told(lambda: Schedule(stage, 4, mse, config=ScheduleConfig(policy="eager"))),
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
    """Return the errors of a step that ends on one rank and therefore on all ranks."""
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
    """End rank 1 in the middle of the second step, and return the error on the other ranks."""
    module = Dying(rank, 10) if rank == 1 else part(rank)
    schedule = Schedule(PipelineStage(module, rank, size, CPU), 8, mse, schedule="1f1b")
    x, y = batch(0, 16)
    try:
        for _ in range(3):
            schedule.step(*((x,) if rank == 0 else ()), target=y if rank == size - 1 else None)
    except SlacklineError as error:
        return type(error).__name__
    return "nothing"


def nobody_sends(rank, size, store):
    """Run a step in which rank 0 does not take part. The other ranks report what they wait for when
    their timeout passes."""
    dist.init_process_group("slackline", init_method=f"file://{store}", rank=rank, world_size=size)
    dist.barrier()  # the short timeout must not include the start of the processes
    dist.group.WORLD.set_timeout(timedelta(seconds=5))
    schedule = Schedule(PipelineStage(part(rank), rank, size, CPU), 4, mse, schedule="1f1b")
    said = None if rank == 0 else told(lambda: schedule.step(target=batch(0, 8)[1]))
    mark("gave up")
    wait_for_marks("gave up", range(size))  # a rank that leaves is an error to those that wait
    return said


def interrupted(rank, size, store):
    """Interrupt rank 1, as Ctrl-C does, while the other ranks wait for it."""
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
    """A module that interrupts its process in the forward pass. The main thread then waits for
    messages that never come."""

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
    """Interrupt rank 1 while it waits for rank 0, which never sends."""
    dist.init_process_group("slackline", init_method=f"file://{store}", rank=rank, world_size=size)
    schedule = Schedule(PipelineStage(part(rank), rank, size, CPU), 8, mse, schedule="zb-h1")
    if rank == 0:
        try:
            dist.recv(torch.zeros(1), 1)
        except SlacklineError as error:
            return type(error).__name__
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        schedule.step(target=batch(0, 16)[1])
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    return "nothing"


def on_gloo(rank, size, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    found = told(lambda: Schedule(PipelineStage(part(rank), rank, size, CPU), 8, mse))
    # With gloo, a rank that is still connecting fails when another rank leaves.
    mark("was refused")
    wait_for_marks("was refused", range(size))
    dist.destroy_process_group()
    return found


def closed(rank, size):
    """Return the error of a step of a closed schedule; another schedule then uses the group."""
    schedule = steps(rank, size, turns=2)
    schedule.close()
    schedule.close()
    refused = told(lambda: schedule.step(torch.ones(16, WIDTH)))
    steps(rank, size, turns=2)
    return refused

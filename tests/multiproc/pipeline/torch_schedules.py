"""Compare the gradients of torch's own pipeline schedules over gloo with those of one process.

    python tests/multiproc/pipeline/torch_schedules.py [MODEL ...]

Each model runs with each schedule on two ranks, forked from this process, with 8 microbatches. A
schedule of one stage a rank runs two stages, the others run four. The script prints a table with
"right" if all gradients equal those of one process, "wrong" if some differ, "none" if some are
missing, "error" if a rank raises an exception, and "hangs" if the ranks do not end.
"""

import os
import select
import signal
import sys
import tempfile
import time
from copy import deepcopy
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)

from slackline.plan.pipeline import looped, one_each, vee

RANKS, COUNT, WIDTH = 2, 8, 6
LIMIT = timedelta(minutes=2)
CPU = torch.device("cpu")
SCHEDULES = {
    "GPipe": (ScheduleGPipe, one_each(RANKS)),
    "1F1B": (Schedule1F1B, one_each(RANKS)),
    "Interleaved1F1B": (ScheduleInterleaved1F1B, looped(2 * RANKS, RANKS)),
    "LoopedBFS": (ScheduleLoopedBFS, looped(2 * RANKS, RANKS)),
    "InterleavedZeroBubble": (ScheduleInterleavedZeroBubble, looped(2 * RANKS, RANKS)),
    "ZBVZeroBubble": (ScheduleZBVZeroBubble, vee(2 * RANKS)),
    "DualPipeV": (ScheduleDualPipeV, vee(2 * RANKS)),
}


class Part(nn.Module):
    """A stage of a small model, whose forward is given by a function."""

    def __init__(self, index, forward):
        super().__init__()
        torch.manual_seed(index)
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.words = nn.Embedding(16, WIDTH)
        self.compute = forward

    def forward(self, x):
        return self.compute(self, x)


def plain(part, x):
    return part.two(part.one(x).tanh()).tanh()


def detached(part, x):
    return plain(part, x).detach()


def integer(part, x):
    return (plain(part, x) * 8).long().remainder(16)


def from_integers(part, x):
    # torch runs a stage on memory of any content to learn shapes, which may be no valid index.
    return plain(part, part.words(x.remainder(16)).mean(1))


def gated(part, x):
    return part.two(part.one(x).tanh() if x[0, 0] > 0 else x)


def wholly_gated(part, x):
    return plain(part, x) if x[0, 0] > 0 else x


def repeated(part, x):
    return part.one(part.two(part.one(x).tanh()).tanh())


def ignoring(part, x):
    return plain(part, torch.ones_like(x))


def every(forward):
    return lambda stages: [Part(index, forward) for index in range(stages)]


def first(forward, second=plain):
    def make(stages):
        forwards = [forward, second] + [plain] * (stages - 2)
        return [Part(index, each) for index, each in enumerate(forwards)]

    return make


def last(forward):
    def make(stages):
        return [Part(i, forward if i == stages - 1 else plain) for i in range(stages)]

    return make


def frozen_first(stages):
    parts = every(plain)(stages)
    parts[0].requires_grad_(False)
    return parts


def frozen_others(stages):
    parts = every(plain)(stages)
    for each in parts[1:]:
        each.requires_grad_(False)
    return parts


def tied(stages):
    parts = every(plain)(stages)
    for each in parts:
        each.two.weight = each.one.weight
    return parts


def assign(parts):
    for each in parts:
        values = {name: value.clone() for name, value in each.state_dict().items()}
        each.load_state_dict(values, assign=True)


def unfreeze(parts):
    for each in parts:
        each.requires_grad_(True)


def replace(parts):
    for index, each in enumerate(parts):
        torch.manual_seed(50 + index)
        each.two = nn.Linear(WIDTH, WIDTH)


def nothing(parts):
    pass


def keep(parts):
    """Keep the gradients of the first step, to which the second step adds."""


MODELS = {
    "plain layers": (every(plain), nothing),
    "first stage frozen": (frozen_first, nothing),
    "output detached": (first(detached), nothing),
    "output of integers": (first(integer, from_integers), nothing),
    "last stage ignores its input": (last(ignoring), nothing),
    "a gate around a layer": (every(gated), nothing),
    "a gate around the first stage": (first(wholly_gated), nothing),
    "a gate around the last stage": (last(wholly_gated), nothing),
    "a layer used twice": (every(repeated), nothing),
    "tied layers": (tied, nothing),
    "load_state_dict(assign=True) between steps": (every(plain), assign),
    "layers replaced between steps": (every(plain), replace),
    "layers unfrozen between steps": (frozen_others, unfreeze),
    "gradients added over two steps": (every(plain), keep),
}


def batch():
    """Return inputs and targets; microbatches 1 and 5 are those for which a first gate is shut."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(2 * COUNT, WIDTH, generator=generator)
    x[::2, 0] = torch.tensor([1.0, -1.0, 1.0, 1.0] * (COUNT // 4))
    return x, torch.randn(2 * COUNT, WIDTH, generator=generator)


def one_process(parts, x, y):
    """Compute the gradients of the mean of all microbatches' losses."""
    model = nn.Sequential(*parts)
    for a, b in zip(x.tensor_split(COUNT), y.tensor_split(COUNT), strict=True):
        loss = nn.functional.mse_loss(model(a), b)
        if loss.requires_grad:
            (loss / COUNT).backward()


def verdict(rank, model, schedule):
    """Take a step, change the model, take another step, and compare the second one."""
    kind, placement = SCHEDULES[schedule]
    make, change = MODELS[model]
    parts = make(len(placement))
    mine = [index for index, owner in enumerate(placement) if owner == rank]
    stages = [PipelineStage(parts[index], index, len(placement), CPU) for index in mine]
    one_stage = len(placement) == RANKS
    pipeline = kind(stages[0] if one_stage else stages, COUNT, loss_fn=nn.functional.mse_loss)
    x, y = batch()
    given, target = (x,) if 0 in mine else (), y if len(placement) - 1 in mine else None
    pipeline.step(*given, target=target)
    change(parts)
    if change is not keep:
        nn.Sequential(*parts).zero_grad()
    reference = deepcopy(parts)
    for _ in range(2 if change is keep else 1):
        one_process(reference, x, y)
    pipeline.step(*given, target=target)
    found = "right"
    for index in mine:
        for got, wanted in zip(
            parts[index].parameters(), reference[index].parameters(), strict=True
        ):
            if got.grad is None and wanted.grad is not None and wanted.grad.any():
                return "none"
            if got.grad is None or wanted.grad is None:
                found = found if got.grad is None or not got.grad.any() else "wrong"
            elif not torch.allclose(got.grad, wanted.grad, rtol=1e-4, atol=1e-6):
                found = "wrong"
    return found


def rank_of(rank, folder, model, schedule):
    """Run one rank in a forked process, which writes its verdict to a file."""
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        store = f"file://{folder}/store"
        dist.init_process_group(
            "gloo", init_method=store, rank=rank, world_size=RANKS, timeout=LIMIT
        )
        found = verdict(rank, model, schedule)
    except Exception as error:
        found = f"error {type(error).__name__}: {error}"
    (folder / str(rank)).write_text(found)
    os._exit(0)


def run(model, schedule):
    """Return the verdicts of the ranks on a model, each with its reason."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranks = []
        for rank in range(RANKS):
            if not (process := os.fork()):
                rank_of(rank, folder, model, schedule)
            ranks.append(process)
        end = time.monotonic() + LIMIT.total_seconds()
        for process in ranks:
            descriptor = os.pidfd_open(process)
            if not select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
                os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            os.close(descriptor)
        files = [folder / str(rank) for rank in range(RANKS)]
        return [each.read_text() if each.exists() else "hangs" for each in files]


def summary(verdicts):
    """Return the worst verdict of a model's ranks in one word."""
    words = {each.split()[0] for each in verdicts}
    return next(each for each in ("error", "hangs", "none", "wrong", "right") if each in words)


def table(models=()):
    """Return the lines of the table of all models, or of the given ones."""
    lines = [
        f"| model | {' | '.join(SCHEDULES)} |",
        "|---" * (1 + len(SCHEDULES)) + "|",
    ]
    for model in models or MODELS:
        words = [summary(run(model, schedule)) for schedule in SCHEDULES]
        lines.append(f"| {model} | {' | '.join(words)} |")
    return lines


if __name__ == "__main__":
    sys.stdout.write("\n".join([f"torch {torch.__version__}", *table(sys.argv[1:]), ""]))

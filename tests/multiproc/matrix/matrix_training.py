"""The functions of the ranks in the training tests, which train with DDP and then with
DataParallel."""

import hashlib
import os
import signal
from pathlib import Path

import torch
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel

from slackline.overlap import DataParallel

STEPS = 8
MIDDLE = 3
VICTIM = 1


def model():
    torch.manual_seed(11)
    return nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8)
    )


def batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(16, 64, generator=generator), torch.randn(16, 8, generator=generator)


def steps(wrap, rank, count=STEPS, in_the_middle=lambda: None):
    wrapped, optimizer = wrap(model())
    for step in range(count):
        if step == MIDDLE:
            in_the_middle()
        inputs, targets = batch(rank, step)
        nn.functional.mse_loss(wrapped(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    digest = hashlib.sha256()
    for parameter in wrapped.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def with_ddp(bare):
    return DistributedDataParallel(bare, bucket_cap_mb=0.2), optim.SGD(bare.parameters(), lr=0.05)


def with_overlap(bare):
    optimizer = optim.SGD(bare.parameters(), lr=0.05)
    return DataParallel(bare, optimizer), optimizer


def trains_both_ways(rank, size):
    return [steps(with_ddp, rank), steps(with_overlap, rank)]


def suffers_in_the_middle(rank, size):
    """Train while the victim is stopped and continued once; the other ranks wait for its
    gradients."""

    def suffer():
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.signal(signal.SIGCONT, lambda number, frame: None)
        signal.set_wakeup_fd(writing)
        publish_pid()
        os.read(reading, 1)

    in_the_middle = suffer if rank == VICTIM else lambda: None
    return [steps(with_ddp, rank, STEPS, in_the_middle), steps(with_overlap, rank)]


def dies_in_the_middle(rank, size):
    """Train until the victim is killed, and return the error on each surviving rank. The training
    takes too many steps to end by itself."""
    try:
        steps(with_ddp, rank, 1000, publish_pid if rank == VICTIM else lambda: None)
    except RuntimeError as error:
        return str(error)
    return "nothing"


def publish_pid():
    path = Path(os.environ["MATRIX_PID"])
    part = path.with_name("part")
    part.write_text(str(os.getpid()))
    part.rename(path)

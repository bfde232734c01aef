"""What the ranks of the training tests do: DDP and DataParallel, one after the other."""

import hashlib
import os
import signal
import subprocess

import torch
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel

from slackline.overlap import DataParallel

STEPS = 8


def model():
    torch.manual_seed(11)
    return nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 8)
    )


def batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(16, 64, generator=generator), torch.randn(16, 8, generator=generator)


def steps(wrap, rank):
    wrapped, optimizer = wrap(model())
    for step in range(STEPS):
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


def stops_in_the_middle(rank, size):
    """Rank 1 stands still for a while, as a host does that swaps or is being moved."""
    if rank == 1:
        pause = f"sleep 0.2; kill -STOP {os.getpid()}; sleep 0.7; kill -CONT {os.getpid()}"
        with subprocess.Popen(["sh", "-c", pause]):
            return trains_both_ways(rank, size)
    return trains_both_ways(rank, size)


def dies_in_the_middle(rank, size):
    """What the survivors are told."""
    bare = model()
    wrapped, optimizer = with_ddp(bare)
    try:
        for step in range(1000):
            if (rank, step) == (1, 3):
                os.kill(os.getpid(), signal.SIGKILL)
            inputs, targets = batch(rank, step)
            nn.functional.mse_loss(wrapped(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    except RuntimeError as error:
        return str(error)
    return "nothing"

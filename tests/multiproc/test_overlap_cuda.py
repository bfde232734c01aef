"""Tests of DataParallel with parameters on a CUDA device, whose gradients go through the process
group."""

import copy

import pytest
import torch
from torch import distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel

from slackline.overlap import DataParallel

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.device_count(), reason="no CUDA device"),
]


class Forked(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU())
        self.sides = nn.ModuleList([nn.Linear(64, 8) for _ in range(2)])

    def forward(self, x, side):
        return self.sides[side](self.trunk(x))


def train(model, optimizer, rank):
    for turn in range(5):
        generator = torch.Generator().manual_seed(10 * turn + rank)
        x = torch.randn(16, 32, generator=generator).cuda()
        model(x, (rank + turn) % 2).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: value.clone() for name, value in model.state_dict().items()}


def on_the_device(rank, size):
    torch.manual_seed(0)
    plain = Forked().cuda()
    module = copy.deepcopy(plain)
    optimizer = optim.AdamW(module.parameters(), lr=0.01)
    model = DataParallel(module, optimizer)
    mine = train(model, optimizer, rank)
    ddp = DistributedDataParallel(plain, find_unused_parameters=True)
    theirs = train(ddp, optim.AdamW(plain.parameters(), lr=0.01), rank)
    for name, value in mine.items():
        torch.testing.assert_close(value, theirs[f"module.{name}"], msg=name)


def as_bf16(rank, size):
    """Check one step's gradients: rounded to bf16, added in fp32 in rank order, rounded again."""
    torch.manual_seed(0)
    plain = nn.Linear(32, 2000).cuda()
    module = copy.deepcopy(plain)
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    model = DataParallel(module, optimizer, communicate=torch.bfloat16)
    for turn in range(2):
        x = torch.randn(16, 32, generator=torch.Generator().manual_seed(10 * turn + rank)).cuda()
        for each in (model, plain):
            each.zero_grad()
            each(x).square().mean().backward()
        model.synchronize()
        for mine, own in zip(module.parameters(), plain.parameters(), strict=True):
            parts = [torch.empty_like(own.grad) for _ in range(size)]
            dist.all_gather(parts, own.grad)
            total = sum(part.bfloat16().float() for part in parts)
            assert torch.equal(mine.grad, (total / size).bfloat16().float())
    model.close()


def test_gradients_on_a_device_travel_as_bf16(job):
    job(3, as_bf16)


def test_a_model_on_a_device_follows_ddp(job):
    job(2, on_the_device)

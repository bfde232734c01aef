"""Tests that models in torch's own wrappers get DataParallel's bits with virtual ranks."""

import os

import pytest
import torch
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel

from slackline.overlap import DataParallel, DDPParts

STEPS = 5
DATA = torch.randn(60, 1, 8, 8, generator=torch.Generator().manual_seed(4))


class Net(nn.Module):
    """A convolution with BatchNorm, dropout, tied weights and a parameter that some samples use."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.2), nn.Flatten()
        )
        self.features[0].to(memory_format=torch.channels_last)
        self.head = nn.Linear(3 * 36, 7)
        self.last, self.tied = nn.Linear(7, 7), nn.Linear(7, 7)
        self.tied.weight = self.last.weight
        self.rare = nn.Parameter(torch.ones(7))
        self.frozen = nn.Parameter(torch.ones(7), requires_grad=False)

    def forward(self, x):
        y = self.tied(torch.relu(self.last(self.head(self.features(x)))))
        return y * self.rare if float(x[0, 0, 0, 0].detach()) > 0 else y


OPTIMIZERS = {
    "sgd": lambda parameters: optim.SGD(parameters, lr=0.05, momentum=0.9),
    "fused": lambda parameters: optim.AdamW(parameters, lr=0.01, fused=True),
}


def train(rank, size):
    kind, optimizer = os.environ["KIND"], OPTIMIZERS[os.environ["OPTIMIZER"]]
    torch.set_num_threads(1)
    torch.manual_seed(2)
    model = Net()
    stepper = optimizer(model.parameters())
    if kind == "own":
        parallel = wrapped = DataParallel(model, stepper, virtual_ranks=5, seed=3)
    else:
        wrapped = DistributedDataParallel(
            model,
            find_unused_parameters=True,
            bucket_cap_mb=0.001,
            gradient_as_bucket_view=kind == "views",
        )
        parallel = DDPParts(wrapped, stepper, virtual_ranks=5, seed=3)
    for step in range(STEPS):
        for part in parallel.parts(step):
            with part:
                wrapped(DATA[part.indices(len(DATA), batch=20)]).square().mean().backward()
        if kind == "own":
            parallel.clip_grad_norm_(0.5)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        stepper.step()
        stepper.zero_grad()
    found = parallel.hash
    parallel.close()
    return found


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_ddp_has_the_hash_of_data_parallel_on_any_number_of_processes(job, optimizer):
    def hashes(size, kind):
        return {*job(size, train, environment={"KIND": kind, "OPTIMIZER": optimizer})}

    expected = hashes(1, "own")
    assert len(expected) == 1
    for size, kind in ((1, "copies"), (2, "copies"), (3, "copies"), (3, "views"), (5, "copies")):
        assert hashes(size, kind) == expected, (size, kind)

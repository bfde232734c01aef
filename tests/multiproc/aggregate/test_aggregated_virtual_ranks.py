"""Tests that virtual ranks train the same parameters with an aggregation node, without one, and
when the node dies in the middle."""

import os
import signal

import pytest
import torch
from torch import distributed as dist
from torch import nn, optim

from slackline.overlap import DataParallel
from slackline.plan.collective import even_runs

LEAVES = 8


def trained(rank, size):
    """Return the hash of a training, and the name of the plan that adds the nodes."""
    torch.set_num_threads(1)
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Linear(64, 300), nn.BatchNorm1d(300), nn.ReLU(), nn.Dropout(0.1), nn.Linear(300, 10)
    )
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.randn(320, 64, generator=torch.Generator().manual_seed(4))
    kills_at = int(os.environ.get("KILL_AT", "-1"))
    with DataParallel(model, optimizer, virtual_ranks=LEAVES, seed=3) as parallel:
        for step in range(8):
            for part in parallel.parts(step):
                with part:
                    x = data[part.indices(len(data), batch=64)]
                    parallel(x).square().mean().backward()
                if step == kills_at and rank == 0:
                    os.kill(int(os.environ["NODE"]), signal.SIGKILL)
                    kills_at = -1
            optimizer.step()
            optimizer.zero_grad()
        found = parallel.hash
    nic = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).nic
    return nic.plan_for(1 << 16, runs=even_runs(LEAVES, size)).name, found


@pytest.fixture(scope="module")
def alone(job):
    """The hash of one process."""
    ((_, found),) = job(1, trained)
    return found


@pytest.mark.parametrize(
    ("ranks", "nic", "killed_at", "plan"),
    [
        (2, "software", None, "star"),
        (4, "software", None, "star"),
        (4, "software", 4, "star"),
        (3, "software", None, "tree"),
        (3, "software", 4, "tree"),
        (2, "twin", None, "star"),
        (4, "twin", None, "tree"),
    ],
)
def test_the_hash_is_that_of_one_process(job, nodes, alone, ranks, nic, killed_at, plan):
    node = nodes("--nic", nic)
    more = {} if killed_at is None else {"KILL_AT": str(killed_at)}
    found = job(ranks, trained, environment=node.environment(**more))
    assert found == [[plan, alone]] * ranks


def test_circuits_of_two_ranks_train_the_same_parameters(job, alone):
    environment = {"SLACKLINE_NIC": "twin", "SLACKLINE_RAILS": "tcp"}
    found = job(2, trained, environment=environment)
    assert found == [["reduce-broadcast", alone]] * 2

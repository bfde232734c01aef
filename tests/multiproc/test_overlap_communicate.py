"""Tests of gradients that travel as bf16 between processes, bit for bit."""

import copy

import pytest
import torch
from torch import distributed as dist
from torch import nn, optim

from slackline.errors import UsageError
from slackline.overlap import DataParallel

BF16 = torch.bfloat16


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 64), nn.Linear(64, 10)
    )


def loss(model, rank, turn):
    seed = torch.Generator().manual_seed(1000 * turn + rank)
    x, y = torch.randn(4, 1, 8, 8, generator=seed), torch.randint(10, (4,), generator=seed)
    return nn.functional.cross_entropy(model(x), y)


def averaged(tensor, size):
    """Return the average over the ranks by the rule: rounded to bf16, added in fp32 in rank order,
    divided, rounded to bf16."""
    parts = [torch.empty_like(tensor) for _ in range(size)]
    dist.all_gather(parts, tensor.contiguous())
    total = parts[0].to(BF16).float()
    for part in parts[1:]:
        total += part.to(BF16).float()
    return (total / size).to(BF16).float()


def by_the_rule(rank, size):
    """Train with groups of three sizes, and compare each step with averages by the rule."""
    for group_bytes in (0, 5000, 1 << 20):
        plain = net()
        module = copy.deepcopy(plain)
        optimizer, reference = (optim.AdamW(each.parameters(), lr=0.01) for each in (module, plain))
        with DataParallel(module, optimizer, group_bytes=group_bytes, communicate=BF16) as model:
            for turn in range(4):
                loss(model, rank, turn).backward()
                optimizer.step()
                optimizer.zero_grad()
                loss(plain, rank, turn).backward()
                for parameter in plain.parameters():
                    parameter.grad = averaged(parameter.grad, size)
                reference.step()
                reference.zero_grad()
                for mine, right in zip(module.parameters(), plain.parameters(), strict=True):
                    assert torch.equal(mine, right), (group_bytes, turn)


def over_gloo(rank, size):
    module = nn.Linear(2, 2)
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    group = dist.new_group(backend="gloo")
    dist.barrier()  # gloo's group must be complete before a rank leaves it
    with pytest.raises(UsageError) as caught:
        DataParallel(module, optimizer, process_group=group, communicate=BF16)
    return str(caught.value)


@pytest.mark.parametrize(
    ("size", "environment"),
    [
        (2, {}),
        (3, {"SLACKLINE_RAILS": "tcp"}),
        (3, {"SLACKLINE_RAILS": "udp"}),
        (4, {"SLACKLINE_ORDER": "any", "SLACKLINE_PLAN": "ring"}),
    ],
    ids=["2", "3, tcp", "3, udp", "4, any order"],
)
def test_a_training_has_the_bits_of_the_rule_whatever_the_groups(job, size, environment):
    job(size, by_the_rule, environment=environment)


def test_another_backend_is_refused(job):
    assert (
        job(2, over_gloo)
        == [
            "communicate=torch.bfloat16 must be used with the backend 'slackline', not 'gloo', "
            "which does not sum that type in fp32 in the order of the ranks"
        ]
        * 2
    )

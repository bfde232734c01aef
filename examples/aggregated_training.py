r"""Train with DistributedDataParallel while an aggregation node adds the gradients of all ranks.

    slackline aggregate --listen 127.0.0.1:7000 --workers 2 &
    SLACKLINE_AGGREGATOR=127.0.0.1:7000 SLACKLINE_PLAN=star \
        slackline run --ranks 2 examples/aggregated_training.py

Each rank sends its gradients to the node once and receives the sum once: the plan `star`. On a
cluster the node is a host of its own, and without SLACKLINE_PLAN a trial decides where it helps.
"""

import os
import sys

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from slackline.backend import group_of


def main() -> None:
    if not os.environ.get("SLACKLINE_AGGREGATOR"):
        sys.exit("start `slackline aggregate` and set SLACKLINE_AGGREGATOR to its address")
    dist.init_process_group("slackline")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    data = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(60):
        x = torch.randn(64, 64, generator=data)
        loss = mse_loss(parallel(x), x.flip(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    nbytes = 4 * sum(parameter.numel() for parameter in model.parameters())
    chosen = group_of(dist.group.WORLD).plan_for(nbytes)
    if dist.get_rank() == 0:
        print(f"loss {losses[0]:.4f}, then {losses[-1]:.4f}")
        print(f"{nbytes} bytes of gradients a step by the plan {chosen.name}: {chosen.reason}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

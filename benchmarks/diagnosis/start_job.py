"""A job of DistributedDataParallel on the hosts of a lab, which trains for some seconds."""

import sys
import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 256
LAYERS = 8


def main() -> None:
    """Train 8 layers of 256 KiB for the seconds in the first argument."""
    seconds = float(sys.argv[1])
    distributed.init_process_group("slackline")
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    began_s = time.monotonic()
    stop = torch.zeros(1)
    while not stop:
        optimizer.zero_grad()
        model(torch.randn(64, WIDTH)).square().mean().backward()
        optimizer.step()
        stop.fill_(float(time.monotonic() - began_s > seconds))
        distributed.broadcast(stop, 0)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

"""A training job on a lab's hosts, one rank of which becomes slow at a given time."""

import argparse
import os
import subprocess
import sys
import time

import torch
from torch import distributed, nn

import slackline

WIDTH = 256
BURNERS = 3
"""The number of processes that take the core of a rank's host."""


class Net(nn.Module):
    """Four layers of 256 KiB, and computation without parameters that can be made longer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.rounds = 2
        self.register_buffer("matrix", torch.eye(WIDTH), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = self.matrix
            for _ in range(self.rounds):
                for _ in range(10):
                    y = y @ self.matrix
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none", choices=["none", "rank", "loader", "host"])
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--at", type=float, required=True, help="seconds from the first barrier")
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    distributed.init_process_group("slackline")
    rank = distributed.get_rank()
    mine = rank == given.rank
    cores = sorted(os.sched_getaffinity(0))
    if given.fault == "host" and len(cores) > 1:
        os.sched_setaffinity(0, cores[-1:] if mine else cores[:-1])
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    wrapped = slackline.overlap.DataParallel(model, optimizer, group_bytes=1 << 18)
    distributed.barrier()
    began_s = time.monotonic()
    batch = torch.randn(32, WIDTH)
    burners: list[subprocess.Popen[bytes]] = []
    ill = False
    goes_on = torch.ones(1)
    try:
        while goes_on.item():
            now_s = time.monotonic() - began_s
            if mine and not ill and now_s >= given.at:
                ill = True
                if given.fault == "rank":
                    model.rounds *= 12
                elif given.fault == "host":
                    burn = [sys.executable, "-c", "while True: pass"]
                    burners += [subprocess.Popen(burn) for _ in range(BURNERS)]
            if ill and given.fault == "loader":
                time.sleep(0.15)  # A loader that reads its batch from a slow disk.
            wrapped(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            goes_on.fill_(float(now_s < given.seconds))
            distributed.all_reduce(goes_on, op=distributed.ReduceOp.MIN)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    wrapped.close()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

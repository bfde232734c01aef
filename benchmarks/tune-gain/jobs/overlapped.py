"""A perceptron that slackline.overlap trains; every setting is left open."""

import torch
from torch import distributed as dist
from torch import nn

from slackline.overlap import DataParallel

LAYERS, WIDTH, BATCH = 3, 512, 64


def main() -> None:
    dist.init_process_group("slackline")
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for _ in range(LAYERS):
        parts += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    plain = nn.Sequential(*parts)
    optimizer = torch.optim.SGD(plain.parameters(), lr=1e-3)
    model = DataParallel(plain, optimizer)
    batch = torch.randn(BATCH, WIDTH)
    while True:  # slackline tune ends the job
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()

"""Train the same network, bit for bit, on any number of ranks.

    slackline run --ranks 1 examples/one_hash.py
    slackline run --ranks 3 examples/one_hash.py
    slackline run --ranks 8 examples/one_hash.py          the three print the same hash

Each step is divided into eight virtual ranks, whatever the number of ranks. A virtual rank has its
own samples, random numbers and BatchNorm statistics, and all gradients are added in one fixed tree.
The hash is taken over all parameters, buffers and the optimizer's state.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.optim import AdamW

import slackline


class Net(nn.Module):
    """A small convolutional network with BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(32 * 16, 10))

    def forward(self, x: Tensor) -> Tensor:
        answers: Tensor = self.head(self.features(x))
        return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="training steps (60)")
    parser.add_argument("--virtual-ranks", type=int, default=8, help="parts of a step (8)")
    options = parser.parse_args()

    torch.set_num_threads(1)  # the number of threads changes the bits of some kernels
    distributed.init_process_group("slackline")
    images, labels = load_digits(return_X_y=True)
    data = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    target = torch.tensor(labels)

    torch.manual_seed(0)
    model = Net()
    optimizer = AdamW(model.parameters(), lr=2e-3)
    parallel = slackline.overlap.DataParallel(
        model, optimizer, virtual_ranks=options.virtual_ranks, seed=0
    )
    for step in range(options.steps):
        for part in parallel.parts(step):
            with part:
                chosen = part.indices(len(data), batch=256)
                loss = functional.cross_entropy(parallel(data[chosen]), target[chosen])
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    model.eval()
    with torch.no_grad():
        right = (parallel(data).argmax(1) == target).float().mean().item()
    found = parallel.hash
    if distributed.get_rank() == 0:
        size = distributed.get_world_size()
        ranks = "1 rank" if size == 1 else f"{size} ranks"
        print(f"{ranks}, {options.steps} steps: {right:.1%} right, hash {found}")
    parallel.close()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

"""Train a network whose layers are split over the ranks by tensor parallelism.

    slackline run --ranks 2 examples/tensor_parallel.py

`parallelize_module` gives each rank some columns of the first layer of a block and the matching
rows of the second one. One all_reduce for each block adds the partial results.
"""

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import gelu, mse_loss

WIDTH = 32


class Block(nn.Module):
    """A perceptron with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(gelu(self.up(x)))


def main() -> None:
    dist.init_process_group("slackline")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    torch.manual_seed(1)
    model = nn.Sequential(Block(), Block())
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(2)  # All ranks take the same data.
    losses = []
    for _ in range(60):
        x = torch.randn(64, WIDTH, generator=data)
        loss = mse_loss(model(x), x.sort(dim=1).values)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    found: list[list[float]] = [[]] * ranks
    dist.all_gather_object(found, losses)
    if rank == 0:
        columns = model[0].up.weight.to_local().shape[0]
        equal = all(each == losses for each in found)
        print(f"loss {losses[0]:.4f}, then {losses[-1]:.4f}")
        print(f"losses of {ranks} ranks: {'equal bits' if equal else 'different bits'}")
        print(f"rank 0 has {columns} of {4 * WIDTH} columns of a block's first layer")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

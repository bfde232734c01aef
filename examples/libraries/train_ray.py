"""Train with Ray Train over slackline, on a Ray cluster of this machine:

    python examples/libraries/train_ray.py

Needs ray: pip install 'slackline-torch[ray]'.
"""

import tempfile

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import TorchConfig, TorchTrainer
from torch import nn

import slackline.overlap

WORKERS = 2


def train() -> dict[str, object]:
    """Train on this worker and return figures of the training, which Ray takes from rank 0.

    Ray has opened the process group that TorchConfig names.
    """
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    with slackline.overlap.DataParallel(model, optimizer) as parallel:
        for _ in range(100):
            x = torch.randn(32, 16, generator=data)
            loss = nn.functional.mse_loss(parallel(x), x.sum(1, keepdim=True))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    everyone = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, flat)
    return {
        "first loss": losses[0],
        "last loss": losses[-1],
        "parameters alike": all(torch.equal(flat, other) for other in everyone),
        "backend": dist.get_backend(),
    }


def main() -> None:
    ray.init(num_cpus=WORKERS)
    with tempfile.TemporaryDirectory() as folder:
        trainer = TorchTrainer(
            train,
            torch_config=TorchConfig(backend="slackline"),
            scaling_config=ray.train.ScalingConfig(num_workers=WORKERS),
            run_config=ray.train.RunConfig(name="sums", storage_path=folder),
        )
        figures = trainer.fit().return_value
    for name, value in figures.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()

"""A program with torch's pipeline, each of whose stages is split by tensor parallelism.

torchrun --nproc-per-node 4 pipeline_tensor_parallel.py BACKEND [SCHEDULE]
"""

import sys

import torch
import torch.distributed as dist
from parallel_model import LENGTH, WIDTH, digest
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

backend, schedule_name = sys.argv[1:]
dist.init_process_group(backend)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "model"))
place = mesh.get_local_rank("stage")
torch.manual_seed(1 + place)
layers = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
parallelize_module(layers, mesh["model"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
stage = pipelining.PipelineStage(
    layers, place, 2, torch.device("cpu"), group=mesh.get_group("stage")
)
schedule = getattr(pipelining, schedule_name)(stage, 4, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.Adam(layers.parameters(), lr=0.01)
data = torch.Generator().manual_seed(3)
for _ in range(4):
    x = torch.randn(8, LENGTH, WIDTH, generator=data)
    losses: list[torch.Tensor] = []
    if place == 0:
        schedule.step(x)
    else:
        schedule.step(target=x.flip(1).tanh(), losses=losses)
    optimizer.step()
    optimizer.zero_grad()
    print("losses", *(loss.item().hex() for loss in losses))
print(f"parameters {digest(layers.parameters())}")
dist.destroy_process_group()

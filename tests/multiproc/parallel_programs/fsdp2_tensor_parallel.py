"""A program that trains a model split along two dimensions: by FSDP2, and by tensor parallelism.

torchrun --nproc-per-node 4 fsdp2_tensor_parallel.py BACKEND
"""

import sys

import torch
import torch.distributed as dist
from parallel_model import Model, digest, loss_of, sentences, split
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group(sys.argv[1])
mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("data", "model"))
torch.manual_seed(1)
model = split(Model(), mesh["model"])
for block in model.blocks:
    fully_shard(block, mesh=mesh["data"])
fully_shard(model, mesh=mesh["data"])
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
data = torch.Generator().manual_seed(2 + mesh.get_local_rank("data"))
for _ in range(5):
    words = sentences(data)
    loss = loss_of(model(words), words)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item().hex()}")
print(f"parameters {digest(model.parameters())}")
dist.destroy_process_group()

"""A program that trains a model split by tensor and sequence parallelism.

torchrun --nproc-per-node 2 tensor_parallel.py BACKEND
"""

import sys

import torch
import torch.distributed as dist
from parallel_model import Model, digest, loss_of, sentences, split
from torch.distributed.device_mesh import init_device_mesh

dist.init_process_group(sys.argv[1])
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(1)
model = split(Model(), mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
data = torch.Generator().manual_seed(2)
for _ in range(5):
    words = sentences(data)
    loss = loss_of(model(words), words)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"loss {loss.item().hex()}")
print(f"parameters {digest(model.parameters())}")
dist.destroy_process_group()

"""A program that trains with Accelerate on CPUs, for which Accelerate uses gloo."""

import torch
import torch.distributed as dist
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
set_seed(1)
x = torch.randn(256, 16)
batches = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
losses = []
for _ in range(12):
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.reduce(loss.detach(), reduction="mean").item())
flat = nn.utils.parameters_to_vector(model.parameters()).detach()
everyone = accelerator.gather(flat).view(accelerator.num_processes, -1)
if accelerator.is_main_process:
    print(f"first loss {losses[0]:.6f}")
    print(f"last loss {losses[-1]:.6f}")
    print(f"parameters alike: {all(torch.equal(flat, other) for other in everyone)}")
    print(f"{dist.get_backend()} through {dist.group.WORLD.name()}")
accelerator.end_training()

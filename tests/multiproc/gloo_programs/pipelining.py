"""A program that trains a pipeline of torch.distributed.pipelining."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
part = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
stage = PipelineStage(part, rank, ranks, torch.device("cpu"))
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
data = torch.Generator().manual_seed(1)
for step in range(4):
    x = torch.randn(8, 16, generator=data)
    optimizer.zero_grad()
    losses = []
    if rank == 0:
        schedule.step(x)
    elif rank == ranks - 1:
        schedule.step(target=x.flip(1).tanh(), losses=losses)
    else:
        schedule.step()
    optimizer.step()
    loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
    dist.broadcast(loss, src=ranks - 1)
    if rank == 0:
        print(f"step {step}: loss {loss.item():.6f}")
if rank == 0:
    print(f"{dist.get_backend()} through {dist.group.WORLD.name()}")
dist.destroy_process_group()

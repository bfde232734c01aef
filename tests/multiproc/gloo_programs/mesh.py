"""A program that reduces along both dimensions of a DeviceMesh, with its groups and with
DTensors."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("data", "model"))
for name in ("data", "model"):
    group = mesh.get_group(name)
    total = torch.full((5,), float(rank))
    dist.all_reduce(total, group=group)
    everyone = [torch.zeros(5) for _ in range(group.size())]
    dist.all_gather(everyone, total, group=group)
    if rank == 0:
        print(f"{name}: {total.tolist()}, {torch.stack(everyone).sum().item()}")
        print(f"{dist.get_backend(group)} through {group.name()}")
whole = torch.arange(32.0).view(4, 8)
sharded = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
turned = sharded.redistribute(placements=[Shard(1), Replicate()])
product = (sharded @ sharded.T).full_tensor()
if rank == 0:
    print(f"local {tuple(sharded.to_local().shape)}, {tuple(turned.to_local().shape)}")
    print(f"product {torch.equal(product, whole @ whole.T)}")
    print(f"{dist.get_backend()} through {dist.group.WORLD.name()}")
dist.destroy_process_group()

"""A rank that ends while torch's C++ code still refers to its groups, tensors or Works.

    python last_objects.py KIND ... [--destroy]

The rank runs a small program of each KIND. With --destroy it destroys the process group at the end.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

KINDS: dict[str, Callable[[], None]] = {}
kept: list[Any] = []
"""What the programs leave behind, until the interpreter clears its modules."""


def kind(program: Callable[[], None]) -> Callable[[], None]:
    KINDS[program.__name__] = program
    return program


def trained(model: nn.Module) -> None:
    """Take a step, and keep the model with its gradients."""
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    kept.append((model, optimizer))


@kind
def ddp() -> None:
    trained(nn.parallel.DistributedDataParallel(nn.Linear(4, 4)))


@kind
def fsdp2() -> None:
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(4, 4)
    fully_shard(model)
    trained(model)


@kind
def tensor_parallel() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    trained(parallelize_module(nn.Linear(4, 4), mesh, ColwiseParallel()))


@kind
def dtensor() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    sharded = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    kept.append((sharded, sharded.redistribute(mesh, [Replicate()]).full_tensor()))


@kind
def unwaited() -> None:
    """Leave the results of functional collectives, which torch's registry of Works keeps."""
    from torch.distributed import _functional_collectives as functional

    group = dist.group.WORLD
    kept.append([functional.all_reduce(torch.ones(size), "sum", group) for size in (1, 300_000)])


@kind
def works() -> None:
    """Keep Works, waited for or not, in a cycle through a tensor's hook that no collector sees."""
    tensor = torch.ones(300_000, requires_grad=True)
    with torch.no_grad():
        found = [dist.all_reduce(tensor.detach().clone(), async_op=True) for _ in range(3)]
    found[0].wait()
    found[1].get_future().then(lambda future: found)
    tensor.register_post_accumulate_grad_hook(lambda tensor: kept.extend(found))
    (tensor * 2).sum().backward()
    kept.append(tensor)


@kind
def overlapped() -> None:
    from slackline import overlap

    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = overlap.DataParallel(model, optimizer)
    wrapped(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    kept.append((wrapped, optimizer))


@kind
def pipelined() -> None:
    from torch.distributed.pipelining import PipelineStage

    from slackline import pipeline

    rank, size = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(nn.Linear(4, 4), rank, size, torch.device("cpu"))
    schedule = pipeline.Schedule(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
    x = torch.ones(4, 4)
    schedule.step(x) if rank == 0 else schedule.step(target=x)
    kept.append(schedule)


if __name__ == "__main__":
    dist.init_process_group("slackline")
    torch.set_num_threads(1)
    asked = [name for name in sys.argv[1:] if not name.startswith("--")]
    for name in asked:
        KINDS[name]()
    dist.barrier()
    if "--destroy" in sys.argv:
        dist.destroy_process_group()
    sys.stdout.write(f"left {' '.join(asked)}\n")

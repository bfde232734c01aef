"""A device mesh whose slow dimension uses slackline, and whose fast one another backend.

gloo takes the place of NCCL, which needs devices.
"""

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from slackline.backend import SlacklineGroup


def trained(slow, fast):
    """Train a model, sharded over `fast` and replicated over `slow`; return its parameters."""
    mesh = init_device_mesh(
        "cpu",
        (2, 2),
        mesh_dim_names=("between", "within"),
        backend_override={"between": slow, "within": fast},
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(3):
        x, y = torch.randn(4, 8, generator=generator), torch.randn(4, 4, generator=generator)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    groups = [mesh.get_group(name) for name in ("between", "within")]
    parameters = [each.full_tensor() for each in model.parameters()]
    dist.barrier()
    return groups, parameters


def two_backends(rank, size, path):
    import slackline

    slackline.register()
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    (between, within), mixed = trained("slackline", "gloo")
    assert isinstance(between, SlacklineGroup)
    assert not isinstance(within, SlacklineGroup)
    assert (dist.get_backend(between), dist.get_backend(within)) == ("slackline", "gloo")
    _, plain = trained("gloo", "gloo")
    # Each sum over a dimension has two terms, so that both backends give the same bits.
    for one, other in zip(mixed, plain, strict=True):
        assert torch.equal(one, other)
    dist.destroy_process_group()


def test_the_slow_dimension_of_a_mesh_uses_slackline_and_the_fast_one_another_backend(job):
    job(4, two_backends, bare=True)

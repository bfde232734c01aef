"""Tests of jobs under TORCH_DISTRIBUTED_DEBUG=DETAIL, between processes on the real engine."""

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.nn.parallel import DistributedDataParallel

from slackline.backend import SlacklineGroup
from slackline.errors import MismatchError
from slackline.overlap import DataParallel
from slackline.pipeline import Schedule

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")


class Forked(nn.Module):
    """A model with a part that the forward leaves out on request."""

    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x, *, whole):
        return self.used(x) + self.unused(x) if whole else self.used(x)


def in_detail(rank, size, path):
    dist.set_debug_level_from_env()
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    dist.init_process_group("slackline", init_method=f"file://{path}", rank=rank, world_size=size)
    # torch does not wrap a group of a Python backend, so slackline itself compares the calls.
    assert isinstance(dist.group.WORLD, SlacklineGroup)
    for later in (False, True):
        tensor = torch.arange(1000.0) * (rank + 1)
        work = dist.all_reduce(tensor, async_op=later)
        if work is not None:
            work.wait()
        assert torch.equal(tensor, torch.arange(1000.0) * 3)
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(size)]
    pair = dist.new_group([0, 1])
    if rank == 0:
        dist.send(torch.full((3,), 5.0), 1, group=pair)
    else:
        received = torch.empty(3)
        dist.recv(received, 0, group=pair)
        assert received.tolist() == [5.0] * 3
    dist.barrier(group=pair)

    torch.manual_seed(0)
    model = DistributedDataParallel(Forked())
    model(torch.full((4, 3), rank + 1.0), whole=True).sum().backward()
    assert model.module.used.weight.grad.tolist() == [[6.0] * 3] * 2
    model(torch.ones(4, 3), whole=False).sum().backward()
    with pytest.raises(RuntimeError) as caught:
        model(torch.ones(4, 3), whole=False)
    assert "Parameters which did not receive grad for rank" in str(caught.value)
    assert all(name in str(caught.value) for name in ("unused.weight", "unused.bias"))

    with pytest.raises(MismatchError) as mismatch:
        dist.all_reduce(torch.ones(3 + rank))
    dist.destroy_process_group()
    return str(mismatch.value)


def test_a_job_in_the_debug_level_detail_works_and_reports_different_calls(job):
    answers = job(2, in_detail, bare=True, environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    for answer in answers:
        assert "all_reduce" in answer


DETAIL = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}


def detailed(rank, size, path):
    dist.set_debug_level_from_env()
    assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    dist.init_process_group("slackline", init_method=f"file://{path}", rank=rank, world_size=size)


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4))


def batches():
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 4, generator=generator) for _ in range(3)]


def trained_alone():
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches():
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def overlapped(rank, size, path):
    detailed(rank, size, path)
    module = layers()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    model = DataParallel(module, optimizer)
    for batch in batches():
        optimizer.zero_grad()
        model(batch.chunk(size)[rank]).square().mean().backward()
        optimizer.step()
    model.close()
    for mine, alone in zip(module.parameters(), trained_alone(), strict=True):
        torch.testing.assert_close(mine, alone)
    dist.destroy_process_group()


def fully_sharded(rank, size, path):
    detailed(rank, size, path)
    model = layers()
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches():
        optimizer.zero_grad()
        model(batch.chunk(size)[rank]).square().mean().backward()
        optimizer.step()
    for mine, alone in zip(model.parameters(), trained_alone(), strict=True):
        torch.testing.assert_close(mine.full_tensor(), alone)
    dist.destroy_process_group()


def pipelined(rank, size, path):
    detailed(rank, size, path)
    whole = layers()
    part = whole[:2] if rank == 0 else whole[2:]
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    stage = PipelineStage(part, rank, size, torch.device("cpu"))
    schedule = Schedule(stage, 2, lambda outputs, _: outputs.square().mean())
    for batch in batches():
        optimizer.zero_grad()
        schedule.step(*([batch] if rank == 0 else []), target=batch if rank == 1 else None)
        optimizer.step()
    expected = trained_alone()[:2] if rank == 0 else trained_alone()[2:]
    for mine, alone in zip(part.parameters(), expected, strict=True):
        torch.testing.assert_close(mine, alone)
    schedule.close()
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "way", [overlapped, fully_sharded, pipelined], ids=lambda way: way.__name__
)
def test_training_in_the_debug_level_detail_equals_one_process(job, way):
    job(2, way, bare=True, environment=DETAIL)

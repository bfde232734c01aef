"""Functions of ranks that train replicas of pipeline stages, sharded by FSDP2 or refused."""

import itertools

import torch
from pipeline_work import CPU, WIDTH, batch, part, told
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.pipelining import PipelineStage
from torch.nn.parallel import DistributedDataParallel

from slackline.overlap import DataParallel
from slackline.pipeline import Schedule

mse = nn.functional.mse_loss
COUNT = 4
CLOSE = 16 * torch.finfo(torch.float32).eps
"""The permitted error of a gradient, relative to its largest element.

The sums of FSDP2's reductions have another order than the sums of one process.
"""


class Gated(nn.Module):
    """A stage with a layer that some microbatches, or all microbatches of a replica, pass by."""

    def __init__(self, index):
        super().__init__()
        torch.manual_seed(index)
        self.before, self.gated = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.after, self.unused = part(index), nn.Linear(2, 2)
        self.opens = lambda x: True

    def forward(self, x):
        x = self.before(x).tanh()
        return self.after(self.gated(x) if self.opens(x) else x)


GATES = {
    "always open": lambda replica: lambda x: True,
    "by data": lambda replica: lambda x: bool(x[0, 0] > 0),
    "by replica": lambda replica: lambda x: replica == 1,
}
SHARDED = {
    "the whole stage": [""],
    "layers and the stage": ["gated", "after", ""],
    "layers": ["before", "gated", "after.0", "after.2"],
}


REDUCED = {"as computed": None, "as float64": torch.float64}
"""The types in which FSDP2 adds and reduces gradients."""
FEW = (
    ("the whole stage", "by replica", "auto", "as computed"),
    ("layers and the stage", "by data", "zb-h1", "as computed"),
    ("layers", "by replica", "ready", "as computed"),
    ("the whole stage", "by replica", "1f1b", "as float64"),
)


def sharded(rank, size, cases=FEW):
    """Compare stages that FSDP2 shards with one process, over steps that accumulate."""
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "pp"))
    replica, index = mesh.get_local_rank("dp"), mesh.get_local_rank("pp")
    for places, gate, schedule, reduced in cases:
        module = Gated(index)
        policy = MixedPrecisionPolicy(reduce_dtype=REDUCED[reduced])
        for name in SHARDED[places]:
            fully_shard(module.get_submodule(name), mesh=mesh["dp"], mp_policy=policy)
        module.opens = GATES[gate](replica)
        stage = PipelineStage(module, index, size // 2, CPU, group=mesh.get_group("pp"))
        pipeline = Schedule(stage, COUNT, mse, schedule=schedule)
        parts = [Gated(each) for each in range(size // 2)]
        for step in range(3):
            # The second step adds to its gradients without a reduction; the third step reduces.
            for each in module.modules():
                if isinstance(each, FSDPModule):
                    each.set_requires_gradient_sync(step != 1)
            x, y = batch(2 * step + replica, 8)
            given = (x,) if index == 0 else ()
            pipeline.step(*given, target=y if index == len(parts) - 1 else None)
            pipeline.eval(*given)
            _one_process(parts, step, GATES[gate])
            if step != 1:
                _compare(module, parts[index], f"{places}, {gate}, {schedule}, {reduced}, {step}")
            if step == 0:
                module.zero_grad()
                nn.Sequential(*parts).zero_grad()
        pipeline.close()


def sharded_in_every_way(rank, size):
    schedules = "1f1b", "zb-h1", "ready", "auto"
    sharded(rank, size, itertools.product(SHARDED, GATES, schedules, REDUCED))


def _one_process(parts, step, gate):
    """Add the gradients of all microbatches of both replicas."""
    for replica in range(2):
        for each in parts:
            each.opens = gate(replica)
        x, y = batch(2 * step + replica, 8)
        for a, b in zip(x.tensor_split(COUNT), y.tensor_split(COUNT), strict=True):
            (mse(nn.Sequential(*parts)(a), b) / (2 * COUNT)).backward()


def _compare(module, reference, what):
    places = zip(module.named_parameters(), reference.parameters(), strict=True)
    for (name, mine), theirs in places:
        assert (mine.grad is None) == (theirs.grad is None), f"{what}: {name}"
        if mine.grad is None:
            continue
        if not hasattr(mine, "full_tensor"):  # FSDP2 leaves layers outside its modules alone
            continue
        error = (mine.grad.full_tensor() - theirs.grad).abs().max() / theirs.grad.abs().max()
        assert error <= CLOSE, f"{what}: {name}: {error}"


def refused(rank, size):
    """Return the errors of stages whose replicas would reduce in every microbatch."""
    x, y = batch(0, 8)

    def ddp(module):
        return DistributedDataParallel(module)

    def fsdp1(module):
        return FullyShardedDataParallel(module, use_orig_params=True, device_id=CPU)

    def overlap(module):
        return DataParallel(module, torch.optim.SGD(module.parameters(), lr=0.1))

    def constructed(module):
        return told(lambda: Schedule(PipelineStage(module, rank, size, CPU), COUNT, mse))

    found = [
        constructed(ddp(part(rank))),
        constructed(nn.Sequential(part(rank), nn.Sequential(ddp(part(rank))))),
        constructed(fsdp1(part(rank))),
        constructed(nn.Sequential(fsdp1(part(rank)), part(rank))),
    ]
    wrapped = overlap(part(rank))
    found.append(constructed(nn.Sequential(wrapped)))
    wrapped.close()
    module = part(rank)
    stage = PipelineStage(module, rank, size, CPU, group=dist.new_group(range(size)))
    schedule = Schedule(stage, COUNT, mse)
    module[2] = ddp(module[2])
    found.append(told(lambda: schedule.step(x, target=y)))
    return found

"""Tests that torch's ways of distributed training give the results of one process, on the real
engine."""

import copy
import random
import time
from datetime import timedelta

import pytest
import torch
from rank_marks import mark, wait_for_marks
from torch import distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    powerSGD_hook,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from slackline.errors import TimeoutError

STEPS = 3
BATCH = 12


def make_model():
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)
    )


def make_batches():
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(BATCH, 8, generator=generator), torch.randn(BATCH, 4, generator=generator))
        for _ in range(STEPS)
    ]


def train(model, batches, optimizer=None, loss=nn.functional.mse_loss):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()
    return model


def shares(rank, size):
    part = BATCH // size
    place = slice(rank * part, (rank + 1) * part)
    return [(inputs[place], targets[place]) for inputs, targets in make_batches()]


def assert_same_parameters(model, other, **tolerance):
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, **tolerance)


def assert_same_on_all_ranks(model, size):
    for parameter in model.parameters():
        everyone = [torch.empty_like(parameter) for _ in range(size)]
        dist.all_gather(everyone, parameter.detach())
        assert all(torch.equal(parameter, other) for other in everyone)


def data_parallel(rank, size):
    alone = train(make_model(), make_batches())
    for options in (
        {},
        {"static_graph": True},
        {"gradient_as_bucket_view": True},
        {"bucket_cap_mb": 0.001},
        {"find_unused_parameters": True},
    ):
        torch.manual_seed(rank)
        model = make_model() if rank == 0 else nn.Sequential(*make_model()).apply(scramble)
        model = DistributedDataParallel(model, **options)
        train(model, shares(rank, size))
        assert_same_parameters(model, alone)
        assert_same_on_all_ranks(model, size)


def scramble(module):
    for parameter in module.parameters(recurse=False):
        nn.init.normal_(parameter)


@pytest.mark.parametrize("size", [2, 3])
def test_ddp_equals_one_process(job, size):
    job(size, data_parallel)


def compiled(rank, size):
    alone = train(nn.Sequential(*make_model(), nn.BatchNorm1d(4)), make_batches())
    for options in ({}, {"static_graph": True}):
        torch._dynamo.reset()
        model = nn.Sequential(*make_model(), nn.BatchNorm1d(4))  # has buffers to broadcast
        model = torch.compile(DistributedDataParallel(model, **options), backend="eager")
        train(model, make_batches())
        assert_same_parameters(model, alone)
        assert_same_on_all_ranks(model, size)


@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_compiled_ddp_equals_one_process(job):
    job(2, compiled)


def uneven_inputs(rank, size):
    inputs = [torch.full((2, 8), float(step + 1)) for step in range(4 + 2 * rank)]
    for initial in (False, True):
        alone = make_model()
        optimizer = torch.optim.SGD(alone.parameters(), lr=0.01)
        for step, x in enumerate(inputs):
            share = 0.5 if initial and step >= 4 else 1.0  # rank 1 continues alone
            optimizer.zero_grad()
            (alone(x).square().mean() * share).backward()
            optimizer.step()
        model = DistributedDataParallel(make_model())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with model.join(divide_by_initial_world_size=initial):
            for x in inputs:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        if rank == 1:
            assert_same_parameters(model, alone)
        # join() gives the parameters of the last rank to all ranks.
        assert_same_on_all_ranks(model, size)


def test_ddp_joins_ranks_with_uneven_inputs_whichever_size_divides(job):
    job(2, uneven_inputs, seconds=60)


class Forked(nn.Module):
    """A model that uses one of its branches, chosen by the rank."""

    def __init__(self, rank):
        super().__init__()
        self.branches = nn.ModuleList([nn.Linear(8, 4), nn.Linear(8, 4)])
        self.norm = nn.BatchNorm1d(4)
        self.rank = rank

    def forward(self, x):
        return self.norm(self.branches[self.rank % 2](x))


def data_parallel_features(rank, size):
    torch.manual_seed(0)
    model = DistributedDataParallel(Forked(rank), find_unused_parameters=True)
    train(model, shares(rank, size))
    assert_same_on_all_ranks(model, size)
    model = DistributedDataParallel(make_model())
    with model.no_sync():
        model(torch.ones(1, 8) * rank).sum().backward()
    model(torch.ones(1, 8) * rank).sum().backward()
    gradient = model.module[4].bias.grad
    assert torch.equal(gradient, torch.full((4,), 2.0))
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        for _ in range(rank + 2):
            optimizer.zero_grad()
            model(torch.ones(3, 8)).sum().backward()
            optimizer.step()
    assert_same_on_all_ranks(model, size)


def test_ddp_finds_unused_parameters_skips_synchronisation_and_joins(job):
    job(2, data_parallel_features)


def hooks(rank, size):
    alone = train(make_model(), make_batches())
    for hook, state, tolerance in (
        (default_hooks.allreduce_hook, dist.group.WORLD, {}),
        (default_hooks.fp16_compress_hook, dist.group.WORLD, {"rtol": 1e-2, "atol": 1e-2}),
        (
            powerSGD_hook.powerSGD_hook,
            powerSGD_hook.PowerSGDState(dist.group.WORLD, 4, start_powerSGD_iter=2),
            {"rtol": 1, "atol": 1},
        ),
    ):
        model = DistributedDataParallel(make_model())
        model.register_comm_hook(state, hook)
        train(model, shares(rank, size))
        assert_same_parameters(model, alone, **tolerance)
        assert_same_on_all_ranks(model, size)


def test_communication_hooks_work(job):
    job(2, hooks)


def power_sgd_of_several_buckets(rank, size, runs):
    """Compare the ranks' parameters after training whose hooks post operations in callbacks.

    All operations have few shapes, so wrong matches would give wrong parameters and no error. Rank
    1 sleeps between the posts and `then`, and within callbacks.
    """
    disturb = random.Random(rank)

    def pause():
        if rank == 1 and disturb.random() < 0.5:
            time.sleep(disturb.random() / 400)

    def hook(state, bucket):
        pause()
        future = powerSGD_hook.powerSGD_hook(state, bucket)
        pause()

        def last(done):
            pause()
            return done.value()

        return future.then(last)

    for run in range(runs):
        torch.manual_seed(run)
        layers = [nn.Linear(64, 64, bias=False) for _ in range(6)]
        model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.02)
        state = powerSGD_hook.PowerSGDState(
            None, 1, start_powerSGD_iter=2, min_compression_rate=0.5
        )
        model.register_comm_hook(state, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
        mine = torch.cat([each.detach().flatten() for each in model.parameters()])
        all_ranks = [torch.empty_like(mine) for _ in range(size)]
        dist.all_gather(all_ranks, mine)
        assert all(torch.equal(mine, other) for other in all_ranks), run


def callbacks_that_differ(rank, size):
    """Have only rank 0 post an operation in its callback; its error names the callback."""
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=0.5)
    options.asyncOp = True

    def post(_):
        return dist.group.WORLD.allreduce([torch.ones(1)], options) if rank == 0 else None

    dist.barrier()
    work = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(post).wait()
    number = dist.group.WORLD._collectives - 1
    if rank == 0:
        with pytest.raises(TimeoutError) as caught:
            work.wait()
        assert str(caught.value).startswith(
            f"rank 0: all_reduce(sum, float32, 4 bytes) in callback 0 of operation {number}, "
            "place 0 Timed out after 0.5 s (timeout 0.5 s) waiting for rank 1 (which has not "
        )
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == size


def callbacks_that_post(rank, size):
    power_sgd_of_several_buckets(rank, size, 5)
    callbacks_that_differ(rank, size)


def test_callbacks_may_post_operations(job):
    job(2, callbacks_that_post)


def many_runs_of_power_sgd(rank, size):
    power_sgd_of_several_buckets(rank, size, 200)


@pytest.mark.slow
def test_callbacks_may_post_operations_in_two_hundred_runs(job):
    job(2, many_runs_of_power_sgd, seconds=400)


def lost_peer_in_training(rank, size):
    import os

    model = DistributedDataParallel(make_model())
    mark("has a model")
    if rank == 1:
        wait_for_marks("has a model", range(size))
        os._exit(3)
    with pytest.raises(RuntimeError, match="PeerError"):
        train(model, shares(rank, size))


def test_a_peers_death_ends_backward_with_an_error_that_names_it(job):
    job(2, lost_peer_in_training, dying=(1,))


def zero(rank, size):
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns when it is imported

    alone_model = make_model()
    alone = train(alone_model, make_batches(), torch.optim.Adam(alone_model.parameters(), lr=0.01))
    model = DistributedDataParallel(make_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    train(model, shares(rank, size), optimizer)
    assert_same_parameters(model, alone, rtol=1e-4, atol=1e-5)
    optimizer.consolidate_state_dict(0)


def test_the_zero_redundancy_optimizer_equals_one_process(job):
    job(2, zero)


def fully_sharded(rank, size):
    alone = train(make_model(), make_batches())
    for shape, names in (((size,), ("shard",)), ((2, size // 2), ("replicate", "shard"))):
        if 0 in shape or shape[-1] == 1:
            continue
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        model = make_model()
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        train(model, shares(rank, size))
        for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            assert isinstance(mine, DTensor)
            torch.testing.assert_close(mine.full_tensor(), theirs)
    model = make_model()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)), mp_policy=policy)
    model.set_gradient_divide_factor(float(size))
    train(model, shares(rank, size), loss=lambda y, t: nn.functional.mse_loss(y.float(), t))
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine.full_tensor(), theirs, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("size", [2, 4])
def test_fsdp2_equals_one_process(job, size):
    job(size, fully_sharded)


def tensor_parallel(rank, size):
    mesh = init_device_mesh("cpu", (size,))
    alone = train(make_model(), make_batches())
    model = parallelize_module(make_model(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    train(model, make_batches(), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        whole = mine.full_tensor() if isinstance(mine, DTensor) else mine
        torch.testing.assert_close(whole, theirs)
    tensor = torch.arange(7.0 * size).view(7, size)
    sharded = distribute_tensor(tensor, mesh, [Shard(0)])
    assert torch.equal(
        sharded.redistribute(placements=[Shard(1)]).to_local()[:, 0], tensor[:, rank]
    )
    assert torch.equal(sharded.redistribute(placements=[Replicate()]).to_local(), tensor)


def test_tensor_parallel_layers_equal_one_process(job):
    job(2, tensor_parallel)


def pipelined(rank, size):
    layers = list(make_model())
    cut = {2: [0, 2, 5], 3: [0, 2, 4, 5]}[size]
    (inputs, targets), *_ = make_batches()
    alone = copy.deepcopy(nn.Sequential(*layers))
    nn.functional.mse_loss(alone(inputs), targets).backward()
    for schedule_class in (ScheduleGPipe, Schedule1F1B):
        part = copy.deepcopy(nn.Sequential(*layers[cut[rank] : cut[rank + 1]]))
        stage = PipelineStage(part, rank, size, torch.device("cpu"))
        schedule = schedule_class(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
        losses = []
        if rank == 0:
            schedule.step(inputs)
        elif rank == size - 1:
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()
        expected = list(alone)[cut[rank] : cut[rank + 1]]
        for mine, theirs in zip(
            part.parameters(), nn.Sequential(*expected).parameters(), strict=True
        ):
            torch.testing.assert_close(mine.grad, theirs.grad)
        assert len(losses) == (4 if rank == size - 1 else 0)


@pytest.mark.parametrize("size", [2, 3])
def test_pipelines_equal_one_process(job, size):
    job(size, pipelined)


def checkpointed(rank, size, store):
    dist.init_process_group("slackline", init_method=f"file://{store}", rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,))
    model = make_model()
    fully_shard(model, mesh=mesh)
    train(model, shares(rank, size))
    folder = f"{store}.checkpoint"
    checkpoint.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)
    other = make_model()
    fully_shard(other, mesh=mesh)
    state = {"model": get_model_state_dict(other)}
    checkpoint.load(state, checkpoint_id=folder)
    set_model_state_dict(other, state["model"])
    for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine.full_tensor(), theirs.full_tensor())
    dist.barrier()
    dist.destroy_process_group()


def test_distributed_checkpoints_save_and_load(job):
    job(2, checkpointed, bare=True)

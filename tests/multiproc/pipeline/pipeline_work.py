"""Work of the ranks in the pipeline tests, which compare gradients bit by bit with those of one
process."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage

from slackline.errors import SlacklineError
from slackline.overlap import DataParallel
from slackline.pipeline import Schedule, ScheduleConfig
from slackline.plan.pipeline import looped, one_each, vee

WIDTH = 12
CPU = torch.device("cpu")


def told(call):
    try:
        call()
    except SlacklineError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def part(index):
    torch.manual_seed(100 + index)
    return nn.Sequential(
        nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH), nn.LayerNorm(WIDTH)
    )


def batch(step, samples):
    generator = torch.Generator().manual_seed(step)
    return (
        torch.randn(samples, WIDTH, generator=generator),
        torch.randn(samples, WIDTH, generator=generator),
    )


def alone(parts, microbatches, loss_fn=nn.functional.mse_loss):
    """Return the losses of a single process, which adds the gradients of the microbatches one after
    the other."""
    model = nn.Sequential(*parts)
    model.zero_grad()
    losses = []
    for inputs, targets in microbatches:
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        losses.append(loss.detach())
    for parameter in model.parameters():
        if parameter.grad is not None and len(microbatches) > 1:
            parameter.grad.div_(len(microbatches))
    return losses


def same_bits(mine, reference):
    for (name, got), wanted in zip(mine.named_parameters(), reference.parameters(), strict=True):
        assert (got.grad is None) == (wanted.grad is None), name
        if got.grad is not None:
            assert got.grad.numpy().tobytes() == wanted.grad.numpy().tobytes(), name


def stages_of(rank, size, placement, make=part, **details):
    count = len(placement)
    return [
        PipelineStage(make(index), index, count, CPU, **details)
        for index in range(count)
        if placement[index] == rank
    ]


mse = nn.functional.mse_loss


def steps(
    rank,
    size,
    *,
    placement=None,
    count=8,
    samples=16,
    turns=3,
    make=part,
    loss_fn=mse,
    **options,
):
    """Take steps, compare each with a single process, and return the schedule."""
    placement = one_each(size) if placement is None else placement
    stages = stages_of(rank, size, placement, make)
    schedule = Schedule(stages, count, loss_fn, **options)
    has_first, has_last = placement[0] == rank, placement[-1] == rank
    for turn in range(turns):
        x, y = batch(turn, samples)
        for stage in stages:
            stage.submod.zero_grad()
        losses = []
        given = (x,) if has_first else ()
        schedule.step(*given, target=y if has_last else None, losses=losses)
        parts = [make(index) for index in range(len(placement))]
        microbatches = list(zip(x.tensor_split(count), y.tensor_split(count), strict=True))
        expected = alone(parts, microbatches, loss_fn)
        for stage in stages:
            same_bits(stage.submod, parts[stage.stage_index])
        if has_last:
            assert [loss.item() for loss in losses] == [loss.item() for loss in expected]
    return schedule


def carried(rank, size):
    """Take steps in which messages are sent inline by the computing threads, by measured choice, or
    always by the engine."""
    for delegation in ("never", "auto", "always"):
        schedule = steps(
            rank, size, schedule="zb-h1", config=ScheduleConfig(delegation=delegation), turns=6
        )
        ways = {sent.inline for record in schedule.records for sent in record.sends}
        assert ways == {"never": {True}, "auto": ways, "always": {False}}[delegation]
        assert all(sent.nbytes > 0 for record in schedule.records for sent in record.sends)


ONE_STAGE = [
    ("1f1b", "fixed", {}),
    ("gpipe", "ready", {}),
    ("zb-h1", "ready", {}),
    ("zb-h2", "fixed", {}),
    ("zero-bubble", "ready", {}),
    ("ready", "ready", {"memory": 2}),
    ("slack", "fixed", {}),
    ("adaptra", "adaptra", {}),
    ("auto", "auto", {"memory": 5}),
]


def one_stage_a_rank(rank, size):
    for schedule, policy, options in ONE_STAGE:
        config = ScheduleConfig(policy=policy, full_backward=schedule == "gpipe")
        steps(rank, size, turns=2, schedule=schedule, config=config, **options)


def several_stages_a_rank(rank, size):
    for schedule, policy, placement in (
        ("interleaved", "fixed", looped(2 * size, 2)),
        ("interleaved", "ready", looped(2 * size, 2)),
        ("zb-v", "fixed", vee(2 * size)),
        ("zb-v", "ready", vee(2 * size)),
        ("dualpipe-v", "fixed", vee(2 * size)),
        ("dualpipe-v", "ready", vee(2 * size)),
        ("auto", "auto", vee(2 * size)),
        ("ready", "ready", tuple(index // 2 for index in range(2 * size))),
    ):
        whole = (schedule, policy) == ("dualpipe-v", "fixed")
        config = ScheduleConfig(policy=policy, full_backward=whole)
        steps(rank, size, turns=2, placement=placement, schedule=schedule, config=config)


def replicas(rank, size):
    """Train two pipelines of two stages, whose gradients are averaged while other stages still
    compute."""
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "pp"))
    pipeline, replica = mesh.get_group("pp"), mesh.get_local_rank("dp")
    stages, count = size // 2, 4
    index = mesh.get_local_rank("pp")
    module = part(index)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    wrapped = DataParallel(module, optimizer, process_group=mesh.get_group("dp"))
    stage = PipelineStage(wrapped, index, stages, CPU, group=pipeline)
    schedule = Schedule(stage, count, nn.functional.mse_loss, schedule="zb-h1")
    copies = [part(each) for each in range(stages)]
    plain = torch.optim.SGD(nn.Sequential(*copies).parameters(), lr=0.1)
    for step in range(4):
        x, y = batch(10 * step + replica, 8)
        schedule.step(*((x,) if index == 0 else ()), target=y if index == stages - 1 else None)
        record = schedule.records[-1]
        assert [reduced for reduced, _ in record.reductions_ns] == [index]
        assert record.reductions_ns[0][1] < record.wall_ns
        sums = None
        for other in range(2):
            x, y = batch(10 * step + other, 8)
            alone(copies, list(zip(x.tensor_split(count), y.tensor_split(count), strict=True)))
            found = [each.grad.clone() for each in nn.Sequential(*copies).parameters()]
            sums = found if sums is None else [a + b for a, b in zip(sums, found, strict=True)]
        for parameter, total in zip(nn.Sequential(*copies).parameters(), sums, strict=True):
            parameter.grad = total / 2
        optimizer.step()
        optimizer.zero_grad()
        plain.step()
        wrapped.synchronize()
        for mine, theirs in zip(module.parameters(), copies[index].parameters(), strict=True):
            assert mine.detach().numpy().tobytes() == theirs.detach().numpy().tobytes()
    wrapped.close()

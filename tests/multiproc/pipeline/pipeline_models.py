"""Functions of ranks that run pipeline stages of every kind."""

import gc

import torch
from pipeline_work import CPU, WIDTH, alone, batch, part, same_bits, stages_of, steps, told
from torch import nn
from torch.distributed.pipelining import PipelineStage, pipe_split, pipeline
from torch.utils.checkpoint import checkpoint

from slackline.backend import counters
from slackline.pipeline import Schedule, ScheduleConfig
from slackline.plan.pipeline import one_each, vee
from slackline.testing.timed_stage import TimedStage

mse = nn.functional.mse_loss


class Checkpointed(nn.Module):
    def __init__(self, index, reentrant):
        super().__init__()
        self.inner, self.reentrant = part(index), reentrant

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=self.reentrant)


class Half(nn.Module):
    """A stage in mixed precision, whose computation and activations are bfloat16."""

    def __init__(self, index):
        super().__init__()
        self.inner = part(index)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x).bfloat16()


class Two(nn.Module):
    """A stage with two outputs, one of integers and one a view. A transposed tensor passes between
    stages."""

    def __init__(self, index):
        super().__init__()
        self.inner, self.first = part(index), index == 0

    def forward(self, x, mask=None):
        if self.first:
            mask = (x > 0).long()
        return (self.inner(x) * mask).t().contiguous().t(), mask


class Last(Two):
    def forward(self, x, mask):
        return super().forward(x, mask)[0]


def compiled(index):
    return torch.compile(part(index), backend="aot_eager")


def checkpointed(rank, size):
    for schedule in ("zb-h1", "1f1b"):
        for policy in ("fixed", "ready"):
            for reentrant in (False, True):
                steps(
                    rank,
                    size,
                    make=lambda index, reentrant=reentrant: Checkpointed(
                        index, reentrant and index > 0
                    ),
                    schedule=schedule,
                    config=ScheduleConfig(policy=policy),
                    turns=2,
                )


def compiled_stages(rank, size):
    for policy in ("fixed", "ready"):
        steps(
            rank,
            size,
            make=compiled,
            schedule="zb-h1",
            config=ScheduleConfig(policy=policy),
            turns=2,
        )


def mixed_precision(rank, size):
    steps(rank, size, make=Half, schedule="zb-h1", turns=2, loss_fn=half_loss)


def half_loss(output, target):
    return mse(output.float(), target)


def several_outputs(rank, size):
    def make(index):
        return (Last if index == size - 1 else Two)(index)

    stage = PipelineStage(make(rank), rank, size, CPU)
    schedule = Schedule(stage, 4, mse, schedule="zb-h1")
    for turn in range(2):
        x, y = batch(turn, 8)
        stage.submod.zero_grad()
        schedule.step(*((x,) if rank == 0 else ()), target=y if rank == size - 1 else None)
        parts = [make(index) for index in range(size)]
        for a, b in zip(x.tensor_split(4), y.tensor_split(4), strict=True):
            values = (a,)
            for each in parts:
                found = each(*values)
                values = found if isinstance(found, tuple) else (found,)
            mse(values[0], b).backward()
        for parameter in parts[rank].parameters():
            parameter.grad.div_(4)
        same_bits(stage.submod, parts[rank])


def shapes_that_differ(rank, size):
    """Train with microbatches of different lengths, which grow and shrink over the steps."""
    stages = stages_of(rank, size, vee(2 * size))
    schedule = Schedule(stages, 4, mse, schedule="auto", memory=3)
    for turn, lengths in enumerate([(3, 700, 1, 5), (900, 2, 1, 40), (1, 1, 1, 1), (5, 6, 7, 8)]):
        given = [batch(10 * turn + place, length) for place, length in enumerate(lengths)]
        for stage in stages:
            stage.submod.zero_grad()
        losses = []
        first = rank == 0
        outputs = schedule.step_microbatches(
            [x for x, _ in given] if first else None,
            targets=[y for _, y in given] if first else None,
            losses=losses,
        )
        parts = [part(index) for index in range(2 * size)]
        expected = alone(parts, given)
        for stage in stages:
            same_bits(stage.submod, parts[stage.stage_index])
        if first:
            assert [loss.item() for loss in losses] == [loss.item() for loss in expected]
            assert [len(each) for each in outputs] == list(lengths)


def uneven_microbatches(rank, size):
    for samples in (10, 7):
        steps(rank, size, count=4, samples=samples, turns=2, schedule="zb-h2")


def gradients_that_are_kept(rank, size):
    """Take two steps without zero_grad between them; each step adds its mean to the gradients."""
    stage = PipelineStage(part(rank), rank, size, CPU)
    schedule = Schedule(stage, 4, mse, schedule="1f1b")
    parts, sums = [part(index) for index in range(size)], None
    for turn in range(2):
        x, y = batch(turn, 8)
        schedule.step(*((x,) if rank == 0 else ()), target=y if rank == size - 1 else None)
        alone(parts, list(zip(x.tensor_split(4), y.tensor_split(4), strict=True)))
        found = [each.grad.clone() for each in parts[rank].parameters()]
        sums = found if sums is None else [a + b for a, b in zip(sums, found, strict=True)]
    for mine, total in zip(stage.submod.parameters(), sums, strict=True):
        assert mine.grad.numpy().tobytes() == total.numpy().tobytes()


def evaluation(rank, size):
    stage = PipelineStage(part(rank), rank, size, CPU)
    schedule = Schedule(stage, 4, mse, memory=2)
    x, y = batch(0, 8)
    for _ in range(2):
        schedule.step(*((x,) if rank == 0 else ()), target=y if rank == size - 1 else None)
        losses = []
        found = schedule.eval(*((x,) if rank == 0 else ()), target=y, losses=losses)
        if rank == size - 1:
            model = nn.Sequential(*(part(index) for index in range(size)))
            assert torch.equal(found, torch.cat([model(each) for each in x.tensor_split(4)]))
            assert not found.requires_grad
            assert len(losses) == 4


def traced(rank, size):
    """Train a model that torch has split, and check that a model with a shortcut past a stage is
    refused."""

    class Whole(nn.Module):
        def __init__(self, shortcut):
            super().__init__()
            self.parts, self.shortcut = nn.ModuleList(map(part, range(3))), shortcut

        def forward(self, x):
            first = self.parts[0](x)
            pipe_split()
            second = self.parts[1](first)
            pipe_split()
            return self.parts[2](second + first if self.shortcut else second)

    x, y = batch(0, 8)
    piped = pipeline(Whole(False), mb_args=(x[:2],))
    stage = piped.build_stage(rank, CPU)
    schedule = Schedule(stage, 4, mse, schedule="zb-h1")
    schedule.step(*((x,) if rank == 0 else ()), target=y if rank == size - 1 else None)
    whole = Whole(False)
    alone([whole], list(zip(x.tensor_split(4), y.tensor_split(4), strict=True)))
    for mine, theirs in zip(stage.submod.parameters(), whole.parts[rank].parameters(), strict=True):
        assert mine.grad.numpy().tobytes() == theirs.grad.numpy().tobytes()
    around = pipeline(Whole(True), mb_args=(x[:2],)).build_stage(rank, CPU)
    return told(lambda: Schedule(around, 4, mse)) if rank == 2 else ""


def autocast_around(rank, size):
    """Take a step within autocast: the forwards run in bfloat16, as in a single process."""
    stage = PipelineStage(part(rank), rank, size, CPU)
    schedule = Schedule(stage, 4, mse, schedule="zb-h1")
    x, y = batch(0, 8)
    with torch.autocast("cpu", torch.bfloat16):
        schedule.step(*((x,) if rank == 0 else ()), target=y if rank == size - 1 else None)
    parts = [part(index) for index in range(size)]
    for a, b in zip(x.tensor_split(4), y.tensor_split(4), strict=True):
        with torch.autocast("cpu", torch.bfloat16):
            loss = mse(nn.Sequential(*parts)(a), b)
        loss.backward()
    for parameter in parts[rank].parameters():
        parameter.grad.div_(4)
    same_bits(stage.submod, parts[rank])


def plans_that_follow(rank, size):
    """Take steps over a slow link until a plan for its delay is made; return plans and reasons."""
    stage = PipelineStage(part(rank), rank, size, CPU)
    found = []
    for name in ("auto", "adaptra"):
        schedule = Schedule(stage, 12, mse, schedule=name)
        plans, changes, left = [], [], 3
        while left:
            x, y = batch(len(plans), 12)
            schedule.step(*((x,) if rank == 0 else ()), target=y if rank == size - 1 else None)
            plans.append(" ".join(each for order in schedule.plan.orders() for each in order))
            changes.append(schedule.records[-1].change)
            left -= any("link 1-2 has" in each for each in changes)
        found.append([plans, changes])
    return found


def plans_made_ahead(rank, size):
    """Take steps over a link that is slow periodically until a plan is made ahead; return the steps
    with a new plan and their reasons."""
    each = 3_000_000
    module = TimedStage(WIDTH, forward_ns=each, backward_input_ns=each, backward_weight_ns=each)
    stage = PipelineStage(module, rank, size, CPU)
    config = ScheduleConfig(forecast=True, plan_effort=0.1)
    schedule = Schedule(stage, 6, mse, config=config)
    step, changes = 0, []
    while not any("is expected to have" in reason for _, reason in changes):
        x, y = batch(step, 6)
        schedule.step(*((x,) if rank == 0 else ()), target=y if rank == size - 1 else None)
        if change := schedule.records[-1].change:
            changes.append([step, change])
        step += 1
        module.zero_grad()
        module.waits.clear()
    return changes


def several_stages_that_follow(rank, size):
    """Take steps, with two stages on each rank, until a plan for a slow link is made; return the
    plans."""
    placement = vee(2 * size)
    stages = stages_of(rank, size, placement)
    schedule = Schedule(stages, 6, mse)
    plans, changes = [], []
    while not any(" has " in each for each in changes):
        x, y = batch(len(plans), 12)
        first_and_last = rank == placement[0]
        schedule.step(*((x,) if first_and_last else ()), target=y if first_and_last else None)
        plans.append(" ".join(each for order in schedule.plan.orders() for each in order))
        changes.append(schedule.records[-1].change)
    return [schedule.plan.name, plans, changes]


def outputs_left(rank, size):
    """Count the last stage's outputs that are alive at once, within a step and after the step.

    The first step returns its outputs, the second one does not.
    """
    module = nn.Linear(WIDTH, WIDTH if rank < size - 1 else 1237)

    def alive():
        # The loss is a sum, so the gradient of an output is one number with strides of zero.
        return sum(
            type(each) is torch.Tensor
            and each.shape == (2, 1237)
            and each.grad_fn is None
            and each.stride() != (0, 0)
            for each in gc.get_objects()
        )

    counts = []

    def loss_fn(output, target):
        counts.append(alive())
        return output.sum()

    schedule = Schedule(
        PipelineStage(module, rank, size, CPU), 8, loss_fn, schedule="1f1b", memory=2
    )
    x = batch(0, 16)[0]
    found = []
    for returned in (True, False):
        counts.clear()
        output = schedule.step(
            *((x,) if rank == 0 else ()),
            target=x if rank == size - 1 else None,
            return_outputs=returned,
        )
        found.append([None if output is None else list(output.shape), max(counts, default=0)])
        del output
        found[-1].append(alive())
    return found


def many_steps(rank, size):
    """Take enough steps for a rail to be cut in the middle of one."""
    steps(rank, size, samples=256, turns=25, schedule="auto", placement=one_each(size))
    return counters()["rails_lost"] + counters()["rails_suspected"]


def settings_of_the_environment(rank, size):
    """Run a step of a schedule that is constructed without a name, and return what it used."""
    stage = PipelineStage(part(rank), rank, size, CPU)
    schedule = Schedule(stage, 4, mse)
    x, y = batch(0, 8)
    schedule.step(*((x,) if rank == 0 else ()), target=y if rank == size - 1 else None)
    schedule.close()
    return schedule.plan.name, schedule.policy, [each.cap for each in schedule.scenario.memory]

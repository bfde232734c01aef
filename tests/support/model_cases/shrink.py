"""Cases that are a little smaller than a given one, so that a failure is reported small."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from model_cases.cases import Case, Plan, Stage, Step

__all__ = ["smaller"]

Item = TypeVar("Item")


def smaller(case: Case) -> Iterator[Case]:
    """Yield variants of the case, each with one thing less; the greatest changes come first."""
    yield from _fewer_stages(case)
    yield from _fewer_steps(case)
    yield from _fewer_microbatches(case)
    for name, usual in (
        ("replicas", 1),
        ("output", "tensor"),
        ("loss", "mean"),
        ("autocast", False),
        ("scaler", False),
        ("keyword", False),
    ):
        if getattr(case, name) != usual:
            yield replace(case, **{name: usual})
    for place, stage in enumerate(case.stages):
        for less in _less_stage(stage):
            yield replace(case, stages=_put(case.stages, place, less))
    for turn, step in enumerate(case.steps):
        for less_step in _less_step(step):
            yield replace(case, steps=_put(case.steps, turn, less_step))


def _put(items: tuple[Item, ...], place: int, *new: Item) -> tuple[Item, ...]:
    """Return the items with new ones, or none, in the place of one."""
    return (*items[:place], *new, *items[place + 1 :])


def _fewer_stages(case: Case) -> Iterator[Case]:
    """Yield the case with a stage less, and with one stage on each rank."""
    count = len(case.stages)
    for place in range(count if count > 1 else 0):
        yield _one_each(replace(case, stages=_put(case.stages, place)))
    if case.ranks < count and not case.wrapped:
        yield _one_each(case)


def _one_each(case: Case) -> Case:
    """Return the case with one stage on each rank, and with schedules that have such plans."""
    count = len(case.stages)
    if case.wrapped:
        return replace(case, placement=(0,) * count)
    steps = []
    for step in case.steps:
        plan = step.plan
        if plan is not None and plan.schedule in ("interleaved", "zb-v", "dualpipe-v"):
            plan = replace(plan, schedule="1f1b" if plan.full else "zb-h1")
        steps.append(replace(step, plan=plan))
    placement = tuple(range(count))
    replicas = case.replicas if count <= 2 else 1
    return replace(case, ranks=count, placement=placement, steps=tuple(steps), replicas=replicas)


def _fewer_steps(case: Case) -> Iterator[Case]:
    """Yield the case with a step less, each kept step with the plan that it has in the case."""
    plans = list(case.plans())
    for turn in range(len(case.steps) if len(case.steps) > 1 else 0):
        steps = list(_put(case.steps, turn))
        if not turn:
            steps[0] = replace(steps[0], plan=plans[1])
        yield replace(case, steps=tuple(steps))


def _fewer_microbatches(case: Case) -> Iterator[Case]:
    most = max(plan.microbatches for plan in case.plans())
    for limit in sorted({1, 2, most // 2, most - 1}):
        if 0 < limit < most:
            steps = tuple(_limited(step, limit) for step in case.steps)
            yield replace(case, steps=steps)


def _limited(step: Step, limit: int) -> Step:
    plan = step.plan
    if plan is not None and plan.microbatches > limit:
        memory = None if plan.memory is None else min(plan.memory, limit)
        plan = replace(plan, microbatches=limit, memory=memory)
    # Rows that are cut evenly, the first ones longer, stay such rows without the last ones.
    return replace(step, plan=plan, rows=step.rows[:limit])


def _less_stage(stage: Stage) -> Iterator[Stage]:
    for place, part in enumerate(stage.parts):
        yield replace(stage, parts=_put(stage.parts, place))
        for wrap in range(len(part.wraps)):
            less = replace(part, wraps=_put(part.wraps, wrap))
            yield replace(stage, parts=_put(stage.parts, place, less))
        if part.kind != "linear":
            plain = replace(part, kind="linear")
            yield replace(stage, parts=_put(stage.parts, place, plain))
    if stage.sends != ("hidden",):
        yield replace(stage, sends=("hidden",))
    for place in range(1, len(stage.sends)):
        yield replace(stage, sends=_put(stage.sends, place))
    for name, usual in (("frozen", False), ("gate", ""), ("ignores", False)):
        if getattr(stage, name) != usual:
            yield replace(stage, **{name: usual})


def _less_step(step: Step) -> Iterator[Step]:
    for place in range(len(step.actions)):
        yield replace(step, actions=_put(step.actions, place))
    if max(step.rows) > 1:
        yield replace(step, rows=(1,) * len(step.rows))
    if step.plan is None or not step.plan.schedule:
        return
    usual = Plan(schedule="gpipe", microbatches=step.plan.microbatches)
    for name in ("schedule", "policy", "memory", "split", "full", "delegation", "scale"):
        if getattr(step.plan, name) != getattr(usual, name):
            plain = {name: getattr(usual, name)}
            yield replace(step, plan=replace(step.plan, **plain))

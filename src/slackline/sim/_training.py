"""Training steps of data-parallel ranks: layers that compute, and gradients that are reduced.

    policy "overlap"   F0 F1 F2 B2 B1 B0 . F0 F1 F2 B2 B1 B0      a layer waits for its own gradient
             network            g2 g1 g0                          urgent ones are sent first
    policy "buckets"   F0 F1 F2 B2 B1 B0 ..... F0 F1 F2           the step waits for all of them
             network            g2 g1 g0
    policy "after"     F0 F1 F2 B2 B1 B0 ......... F0 F1 F2       nothing is sent during backward
             network                     g2 g1 g0

Gradients of neighbouring layers are reduced together in groups. A group is posted when its last
gradient is computed; its priority is the priority of its first layer, because the next forward of
that layer needs the group first.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

from slackline.errors import UsageError
from slackline.faults import Plan
from slackline.sim._execution import Execution
from slackline.sim._fabric import Fabric
from slackline.sim._machine import Machine
from slackline.sim._operation import Operation

__all__ = ["Layer", "Policy", "StepTimes", "TrainingRun", "form_groups", "simulate_training"]

Policy = Literal["overlap", "buckets", "after"]
"""The time at which gradients are sent, and the computations that wait for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer of a model whose parameters have one gradient."""

    forward_ps: int
    """The duration of the layer's forward pass."""
    backward_ps: int
    """The duration of the layer's backward pass; its end completes the gradient."""
    gradient_bytes: int
    """The size of the layer's gradient."""
    optimizer_ps: int = 0
    """The duration of the update of the layer's parameters."""

    def __post_init__(self) -> None:
        for name in ("forward_ps", "backward_ps", "gradient_bytes", "optimizer_ps"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must be at least 0, not {getattr(self, name)}")

    @property
    def compute_ps(self) -> int:
        """The time for which the layer computes in one step."""
        return self.forward_ps + self.backward_ps + self.optimizer_ps


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The durations of one rank's computations in one step, in picoseconds."""

    before_ps: int = 0
    """The time before the forward pass in which the rank waits for no gradient."""
    forward_ps: tuple[int, ...]
    """The duration of each layer's forward pass."""
    backward_ps: tuple[int, ...]
    """The duration of each layer's backward pass."""
    after_ps: int = 0
    """The time after the backward pass in which the rank waits for no gradient."""

    def __post_init__(self) -> None:
        shortest = min(self.before_ps, self.after_ps, *self.forward_ps, *self.backward_ps)
        if shortest < 0:
            raise UsageError(f"every duration of a step must be at least 0, not {shortest}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """The outcome of simulated training steps; times in picoseconds."""

    backward_ps: tuple[tuple[int, ...], ...]
    """For each step, the time at which the backward pass of each rank ended."""
    ended_ps: tuple[int, ...]
    """For each rank, the time at which all parameters were updated after the last step."""
    exposed_ps: tuple[tuple[int, ...], ...]
    """For each step, the time for which each rank's computation waited for gradients."""
    reductions_ps: tuple[tuple[tuple[tuple[int, int], ...], ...], ...]
    """For each step, rank and group, the times at which the rank began and ended the reduction."""
    sent_bytes: tuple[int, ...]
    """For each host, the bytes that its NICs have sent."""
    events: int
    """The number of events that were executed."""

    @property
    def step_ps(self) -> tuple[int, ...]:
        """The times between the ends of consecutive backward passes; n steps have n - 1 of them."""
        ends = [max(ended) for ended in self.backward_ps]
        return tuple(end - start for start, end in pairwise(ends))


def form_groups(layers: Sequence[Layer], group_bytes: int) -> tuple[tuple[int, ...], ...]:
    """Return the layers of each group: neighbouring layers of at most `group_bytes` together.

    A longer gradient forms a separate group; with `group_bytes` 0 every gradient does.
    """
    if group_bytes < 0:
        raise UsageError(f"group_bytes must be at least 0, not {group_bytes}")
    groups: list[list[int]] = []
    size = 0
    for number, layer in enumerate(layers):
        if not groups or size + layer.gradient_bytes > group_bytes:
            groups.append([])
            size = 0
        groups[-1].append(number)
        size += layer.gradient_bytes
    return tuple(map(tuple, groups))


def simulate_training(
    layers: Sequence[Layer],
    fabric: Fabric,
    all_reduce: Callable[[int], Operation],
    *,
    steps: int = 2,
    policy: Policy = "overlap",
    group_bytes: int = 0,
    launch_ps: int = 0,
    placement: Sequence[int] | None = None,
    faults: Plan | None = None,
    times: Callable[[int, int], StepTimes] | None = None,
) -> TrainingRun:
    """Simulate `steps` training steps of a model on ranks that reduce its gradients.

    `all_reduce(nbytes)` returns the operation for a group of `nbytes` bytes. All operations have
    the same members, ranks first; this function sets the priority of their frames. Each rank
    computes nothing else for `launch_ps` picoseconds while it begins an operation. `placement` is
    the host of each member; without it member i is on host i. `times(rank, step)` returns the
    durations of a rank's passes in a step; without it all ranks and steps have those of `layers`.

    Raises UsageError for values that do not fit, and LinkError, PeerError and TimeoutError as
    `simulate_collective` does.
    """
    if not layers:
        raise UsageError("a model must have at least one layer")
    if steps < 1:
        raise UsageError(f"steps must be a positive integer, not {steps}")
    if policy not in get_args(Policy):
        known = ", ".join(get_args(Policy))
        raise UsageError(f"policy must be one of {known}, not {policy!r}")
    if launch_ps < 0:
        raise UsageError(f"launch_ps must be at least 0, not {launch_ps}")
    groups = form_groups(layers, group_bytes)
    operations = _operations(layers, groups, all_reduce, policy)
    members = range(operations[0].plan.members) if placement is None else placement
    training = _Training(
        Machine(fabric, tuple(members), faults),
        tuple(layers),
        groups,
        operations,
        steps=steps,
        policy=policy,
        launch_ps=launch_ps,
        times=times,
    )
    return training.run()


def _operations(
    layers: Sequence[Layer],
    groups: Sequence[Sequence[int]],
    all_reduce: Callable[[int], Operation],
    policy: Policy,
) -> list[Operation]:
    """Return the operation of each group, with the priority of its frames."""
    made = (all_reduce(sum(layers[layer].gradient_bytes for layer in group)) for group in groups)
    return [
        replace(operation, priority=number if policy == "overlap" else 0)
        for number, operation in enumerate(made)
    ]


class _Training:
    """The machine, the ranks' programs, and one execution for each group of each step."""

    def __init__(
        self,
        machine: Machine,
        layers: tuple[Layer, ...],
        groups: tuple[tuple[int, ...], ...],
        operations: Sequence[Operation],
        *,
        steps: int,
        policy: Policy,
        launch_ps: int,
        times: Callable[[int, int], StepTimes] | None,
    ) -> None:
        self.machine, self.layers, self.groups = machine, layers, groups
        self.steps, self.policy, self.launch_ps, self.times = steps, policy, launch_ps, times
        self._operations = operations
        plan = operations[0].plan
        self._members, self._ranks = plan.members, plan.ranks
        self._executions: dict[tuple[int, int], Execution] = {}
        self._began_ps: dict[tuple[int, int, int], int] = {}
        self._ended_ps: dict[tuple[int, int, int], int] = {}
        self._trainers = [_Rank(self, rank) for rank in range(plan.ranks)]

    def run(self) -> TrainingRun:
        for trainer in self._trainers:
            self.machine.at(0, trainer.go_on)
        self.machine.run(lambda: all(trainer.finished for trainer in self._trainers))
        return TrainingRun(
            backward_ps=tuple(zip(*(each.backward_ps for each in self._trainers), strict=True)),
            ended_ps=tuple(trainer.ended_ps for trainer in self._trainers),
            exposed_ps=tuple(zip(*(trainer.exposed_ps for trainer in self._trainers), strict=True)),
            reductions_ps=tuple(
                tuple(
                    tuple(self._span_ps(rank, step, group) for group in range(len(self.groups)))
                    for rank in range(self._ranks)
                )
                for step in range(self.steps)
            ),
            sent_bytes=tuple(self.machine.core.sent_bytes),
            events=self.machine.core.executed,
        )

    def _span_ps(self, rank: int, step: int, group: int) -> tuple[int, int]:
        return self._began_ps[rank, step, group], self._ended_ps[rank, step, group]

    def post(self, rank: int, step: int, group: int) -> None:
        """Let a rank begin the reduction of a group; the first rank also starts the helpers."""
        key = (step, group)
        if key not in self._executions:
            execution = Execution(
                self.machine,
                self._operations[group],
                ended=lambda member: self._ended(member, step, group),
            )
            self._executions[key] = execution
            for helper in range(self._ranks, self._members):
                execution.begin(helper)
        self._began_ps[rank, step, group] = self.machine.now_ps
        self._executions[key].begin(rank)

    def _ended(self, member: int, step: int, group: int) -> None:
        if member < self._ranks:
            self._ended_ps[member, step, group] = self.machine.now_ps
            self._trainers[member].reduced(step, group)
        if self._executions[step, group].finished:
            del self._executions[step, group]


class _Task(NamedTuple):
    kind: Literal["forward", "backward", "pause", "update"]
    step: int
    layer: int


class _Rank:
    """The computation of one rank: tasks in a fixed order, some of which wait for gradients."""

    def __init__(self, training: _Training, rank: int) -> None:
        self.finished = False
        self.ended_ps = 0
        self.backward_ps: list[int] = []
        self.exposed_ps = [0] * training.steps
        self._training, self._rank = training, rank
        self._group_of = {
            layer: number for number, group in enumerate(training.groups) for layer in group
        }
        pauses = training.times is not None
        self._tasks = deque(_tasks(len(training.layers), training.steps, training.policy, pauses))
        self._times: dict[int, StepTimes] = {}
        self._missing: dict[tuple[int, int], int] = {}
        self._reduced: set[tuple[int, int]] = set()
        self._waits_since_ps: int | None = None

    def go_on(self) -> None:
        """Start the next task, or wait for the gradients that it needs."""
        if not self._tasks:
            return
        task, now_ps = self._tasks[0], self._training.machine.now_ps
        if task.kind == "update" and not self._there(task):
            if self._waits_since_ps is None:
                self._waits_since_ps = now_ps
            return
        if self._waits_since_ps is not None:
            self.exposed_ps[task.step] += now_ps - self._waits_since_ps
            self._waits_since_ps = None
        self._tasks.popleft()
        self._training.machine.compute(self._rank, self._duration_ps(task), self._done, task)

    def reduced(self, step: int, group: int) -> None:
        """Record that a group of gradients has been reduced; resume a task that waits for it."""
        self._reduced.add((step, group))
        if self._waits_since_ps is not None:
            self.go_on()

    def _duration_ps(self, task: _Task) -> int:
        layer = self._training.layers[task.layer]
        if task.kind == "update":
            return layer.optimizer_ps
        if self._training.times is None:
            return layer.forward_ps if task.kind == "forward" else layer.backward_ps
        if task.kind == "pause":  # the pause between the previous step and this step
            before = self._times.pop(task.step - 1, None)
            return self._times_of(task.step).before_ps + (before.after_ps if before else 0)
        times = self._times_of(task.step)
        return (times.forward_ps if task.kind == "forward" else times.backward_ps)[task.layer]

    def _times_of(self, step: int) -> StepTimes:
        if step not in self._times:
            assert self._training.times is not None
            found = self._training.times(self._rank, step)
            layers = len(self._training.layers)
            if not len(found.forward_ps) == len(found.backward_ps) == layers:
                raise UsageError(
                    f"times({self._rank}, {step}) must have {layers} durations of each pass, not "
                    f"{len(found.forward_ps)} and {len(found.backward_ps)}"
                )
            self._times[step] = found
        return self._times[step]

    def _there(self, task: _Task) -> bool:
        """Return whether an update's gradients are reduced: the layer's, or those of all layers."""
        needed = {self._group_of[task.layer]}
        if self._training.policy != "overlap":
            needed = set(self._group_of.values())
        return all((task.step, group) in self._reduced for group in needed)

    def _done(self, task: _Task) -> None:
        now_ps = self._training.machine.now_ps
        if task.kind == "backward":
            if task.layer == 0:
                self.backward_ps.append(now_ps)
            self._launch(task.step, self._emitted(task))
            return
        if not self._tasks:
            self.finished, self.ended_ps = True, now_ps
        self._training.machine.at(now_ps, self.go_on)

    def _emitted(self, task: _Task) -> deque[int]:
        """Return the groups that may be posted now that a layer's gradient has been computed."""
        training, group = self._training, self._group_of[task.layer]
        key = (task.step, group)
        self._missing[key] = self._missing.get(key, len(training.groups[group])) - 1
        if training.policy == "after":
            return deque(() if task.layer else reversed(range(len(training.groups))))
        return deque(() if self._missing[key] else (group,))

    def _launch(self, step: int, groups: deque[int]) -> None:
        """Post the groups one after the other, each at the end of its launch; then go on."""
        training = self._training
        if not groups:
            training.machine.at(training.machine.now_ps, self.go_on)
        elif training.launch_ps:
            training.machine.compute(self._rank, training.launch_ps, self._launched, step, groups)
        else:
            while groups:
                training.post(self._rank, step, groups.popleft())
            training.machine.at(training.machine.now_ps, self.go_on)

    def _launched(self, step: int, groups: deque[int]) -> None:
        self._training.post(self._rank, step, groups.popleft())
        self._launch(step, groups)


def _tasks(layers: int, steps: int, policy: Policy, pauses: bool) -> Iterator[_Task]:
    """Yield the tasks of a rank in the order in which its worker executes them.

    With `pauses`, a task before the forward pass of each step waits for no gradient.
    """
    if pauses:
        yield _Task("pause", 0, 0)
    for layer in range(layers):
        yield _Task("forward", 0, layer)
    for step in range(steps):
        for layer in reversed(range(layers)):
            yield _Task("backward", step, layer)
        follows = step + 1 < steps
        if pauses and follows:
            yield _Task("pause", step + 1, 0)
        for layer in range(layers):
            yield _Task("update", step, layer)
            if follows and policy == "overlap":
                yield _Task("forward", step + 1, layer)
        if follows and policy != "overlap":
            for layer in range(layers):
                yield _Task("forward", step + 1, layer)

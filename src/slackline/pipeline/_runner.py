"""The interpreter of a plan: one rank's part of a step, driven by a dispatcher and by arrivals.

In each pass of the loop, an instruction whose messages have arrived becomes ready. The dispatcher
then chooses a ready instruction, the stage computes it, and its message is sent. If no instruction
can start, the rank blocks until a message arrives.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from torch import Tensor

from slackline.errors import TimeoutError, UsageError
from slackline.pipeline._record import Came, Sent, Span, StepRecord, Wait
from slackline.pipeline._transport import Arrival, Transport, name_of, sender_of
from slackline.pipeline._worker import Worker, check_apart
from slackline.plan.pipeline import (
    PATIENCE,
    Dispatcher,
    Instruction,
    Kind,
    Order,
    PipelinePlan,
    RankProgram,
    Scenario,
    duration_ps,
    held_after,
)
from slackline.records import CoreTimes, open_core_times

__all__ = ["Inputs", "LaunchThrottle", "Runner", "StepConfig"]

_PS_PER_NS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConfig:
    """The configuration of a pipeline step: the plan, and how strictly its order is kept."""

    plan: PipelinePlan
    order: Order
    scenario: Scenario
    """The memory caps of the stages; also their times, if `waits_ps` are known."""
    policy: str
    change: str = ""
    """The reason why the plan is not the previous step's plan, or why a trial of plans begins or
    ends; empty otherwise."""
    waits_ps: tuple[int, ...] = ()
    """The planned idle time of this rank before each of its instructions, in picoseconds.

    The tuple is empty while nothing has been measured.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The caller's inputs of a pipeline step, with one entry for each microbatch."""

    arguments: Sequence[tuple[Any, ...]]
    """The arguments of the first stage; empty tuples on ranks without it."""
    keywords: Sequence[Mapping[str, Any]]
    targets: Sequence[Any]
    loss_keywords: Mapping[str, Any] | None = field(default_factory=dict)
    """The keyword arguments of the loss function in every microbatch; None computes no loss."""


@dataclass(slots=True)
class _Log:
    """The notes of a step that runs; times count from `begin_ns`."""

    begin_ns: int
    unix_ns: int
    peak: dict[int, int]
    """The peak of activations held by each stage, in the units of `held_after`."""
    spans: list[Span] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    came: list[Came] = field(default_factory=list)
    sends: list[Sent] = field(default_factory=list)


class LaunchThrottle(Protocol):
    """A launch throttle, which keeps the host from running far ahead of the device."""

    def begin(self) -> None:
        """Begin a pipeline step; no instruction of the step has been launched yet."""

    def starting(self) -> None:
        """Record that an instruction is about to be launched on the device."""

    def started(self) -> None:
        """Record that an instruction has been launched on the device."""

    def catch_up(self) -> None:
        """Block while the device has more than one launched instruction to finish."""

    def times_ns(self) -> list[tuple[int, int]] | None:
        """Return the start and end of each instruction on the device, in nanoseconds since `begin`.

        The result is None if there was no instruction.
        """


class Runner:
    """The interpreter of one rank's part of a pipeline."""

    def __init__(
        self,
        rank: int,
        workers: Mapping[int, Worker],
        transport: Transport,
        throttle: LaunchThrottle | None,
        timeout: timedelta,
        inline: Callable[[int], bool],
    ) -> None:
        """Create a runner of the stages in `workers`, by the stage's index.

        `throttle` is None on a CPU, where a call returns when its work is done. `timeout` limits
        each wait for a message. `inline(link)` tells whether the computing thread itself sends over
        a link.
        """
        self._rank = rank
        self._workers = workers
        self._transport = transport
        self._throttle = throttle
        self._timeout = timeout
        self._inline = inline
        self._reductions: dict[int, int] = {}
        self._begin_ns = 0
        self._form: tuple[PipelinePlan, Order, bool] | None = None
        """The plan and the kind of the latest step, to which the order of messages belongs."""
        self._program: RankProgram | None = None
        """The program of this rank in the plan of the latest step."""
        self._core_times: tuple[int, Callable[[], CoreTimes] | None] = 0, None
        """The system's number of a thread, and the function that reads the thread's times."""
        self._orders: dict[tuple[int, bool], list[int]] = {}

    def reduction_started(self, stage: int) -> None:
        """Record that the first of a stage's parameters is complete, so that reductions start."""
        self._reductions[stage] = time.monotonic_ns() - self._begin_ns

    def run(
        self,
        step: int,
        config: StepConfig,
        inputs: Inputs,
        *,
        training: bool,
        keeps_outputs: bool,
    ) -> StepRecord:
        """Run this rank's part of a pipeline step and return its record.

        With `keeps_outputs`, the last stage's worker holds the outputs until they are taken. Blocks
        until this rank's instructions are done. Errors carry a note with the instruction.
        """
        if self._throttle is not None:
            self._throttle.begin()
        log = _Log(time.monotonic_ns(), time.time_ns(), dict.fromkeys(self._workers, 0))
        read_core_times = self._read_core_times()
        before = None if read_core_times is None else read_core_times()
        self._begin_ns = log.begin_ns
        self._reductions.clear()
        for worker in self._workers.values():
            worker.begin(
                config.plan,
                training=training,
                keeps_outputs=keeps_outputs,
                loss_keywords=inputs.loss_keywords,
            )
        try:
            if training and len(self._workers) > 1:
                check_apart(self._workers.values())
            self._run_instructions(step, config, inputs, log, training=training)
            if training:
                for worker in self._workers.values():
                    worker.complete()
        finally:
            for worker in self._workers.values():
                worker.end()
        throttle, spans = self._throttle, log.spans
        if throttle is not None and (times := throttle.times_ns()) is not None:
            spans = [Span(each.instruction, *when) for each, when in zip(spans, times, strict=True)]
        memory = config.scenario.memory
        return StepRecord(
            rank=self._rank,
            step=step,
            time_ns=log.unix_ns,
            wall_ns=time.monotonic_ns() - log.begin_ns,
            plan=config.plan.name,
            policy=config.policy,
            order=config.order,
            spans=tuple(spans),
            waits=tuple(log.waits),
            came=tuple(log.came),
            sends=tuple(log.sends),
            peak_held=tuple(
                (stage, float(memory[stage].activations(most))) for stage, most in log.peak.items()
            ),
            reductions_ns=tuple(sorted(self._reductions.items())),
            change=config.change,
            core_times=(
                None
                if read_core_times is None or before is None
                else read_core_times().since(before)
            ),
        )

    def _run_instructions(
        self, step: int, config: StepConfig, inputs: Inputs, log: _Log, *, training: bool
    ) -> None:
        """Compute this rank's instructions of a step as they become ready, and send the results."""
        plan, scenario = config.plan, config.scenario
        throttle, transport, begin = self._throttle, self._transport, log.begin_ns
        held = dict.fromkeys(self._workers, 0)
        idle_since: int | None = None
        form = (plan, config.order, training)
        if form != self._form or self._program is None:
            self._form = form
            self._orders = self._channels(config, training=training)
            self._program = RankProgram.of(plan, self._rank)
        dispatcher = Dispatcher(plan, self._rank, scenario, config.order, program=self._program)
        transport.begin(step, self._orders)
        while True:
            if throttle is not None:
                throttle.catch_up()
            log.came += [self._note(each, dispatcher, begin) for each in transport.poll()]
            instruction, left_ns = self._next(dispatcher, config, idle_since)
            if instruction is None:
                if dispatcher.finished:
                    break
                if idle_since is None:
                    idle_since = time.monotonic_ns()
                arrivals = self._wait(dispatcher, left_ns)
                log.came += [self._note(each, dispatcher, begin) for each in arrivals]
                continue
            start = time.monotonic_ns()
            if idle_since is not None:
                log.waits.append(Wait(idle_since - begin, start - begin, str(instruction)))
                idle_since = None
            stage = instruction.stage
            change = held_after(instruction, scenario)
            if instruction.kind is Kind.F:
                held[stage] += change
                log.peak[stage] = max(log.peak[stage], held[stage])
            if throttle is not None:
                throttle.starting()
            message = self._compute(instruction, inputs, training=training)
            if throttle is not None:
                throttle.started()
            end = time.monotonic_ns()
            log.spans.append(Span(instruction, start - begin, end - begin))
            if message is not None:
                log.sends += self._send(instruction, message, plan, end)
            if instruction.kind is not Kind.F:
                held[stage] += change
            dispatcher.done(instruction)

    def _compute(
        self, instruction: Instruction, inputs: Inputs, *, training: bool
    ) -> Sequence[Tensor | None] | None:
        """Compute an instruction; return the message for the neighbour stage, None without one."""
        worker = self._workers[instruction.stage]
        microbatch, stage = instruction.microbatch, instruction.stage
        try:
            if instruction.kind is Kind.F:
                if worker.first:
                    given = inputs.arguments[microbatch]
                else:
                    given = tuple(self._transport.take((stage, False, microbatch)))
                outputs = worker.forward(
                    microbatch,
                    given,
                    inputs.keywords[microbatch],
                    inputs.targets[microbatch],
                    training=training,
                )
                return None if worker.last else outputs
            if instruction.kind is Kind.W:
                worker.weights(microbatch)
                return None
            gradients = None if worker.last else self._transport.take((stage, True, microbatch))
            found = worker.backward(instruction, gradients)
            return None if worker.first else found
        except Exception as error:
            error.add_note(self._where(instruction))
            raise

    def _where(self, instruction: Instruction) -> str:
        """Return the note of an error in a computation."""
        return f"while rank {self._rank} computed {name_of(instruction)}"

    def _send(
        self,
        instruction: Instruction,
        message: Sequence[Tensor | None],
        plan: PipelinePlan,
        begin_ns: int,
    ) -> list[Sent]:
        """Send the message that was computed at the time `begin_ns`; return the record of it."""
        backward = instruction.kind.backward
        to = instruction.stage + (-1 if backward else 1)
        address = (to, backward, instruction.microbatch)
        try:
            if plan.placement[to] == self._rank:
                self._transport.hand_over(address, message)
                return []
            inline = self._inline(min(to, instruction.stage))
            nbytes = self._transport.send(address, message, inline=inline)
        except UsageError as error:
            error.add_note(self._where(instruction))
            raise
        return [Sent(instruction, nbytes, time.monotonic_ns() - begin_ns, inline)]

    @classmethod
    def _next(
        cls, dispatcher: Dispatcher, config: StepConfig, idle_since: int | None
    ) -> tuple[Instruction | None, int]:
        """Return the instruction to start now, or None and a time to wait for a planned one.

        The time is in nanoseconds. If it is 0 or less, the rank waits for any message.
        """
        planned = dispatcher.next(patient=True)
        if planned is not None or config.order != "planned":
            return planned, 0
        left_ns = cls._patience_ns(dispatcher, config, idle_since)
        return (None, left_ns) if left_ns > 0 else (dispatcher.next(), 0)

    @staticmethod
    def _patience_ns(dispatcher: Dispatcher, config: StepConfig, idle_since: int | None) -> int:
        """Return the nanoseconds to wait for the plan's next instruction before starting another.

        The result is 0 or less if there is no time left, or if no other instruction could start.
        """
        if not config.waits_ps or (instead := dispatcher.instead()) is None:
            return 0
        patience_ps = config.waits_ps[dispatcher.position]
        patience_ps += int(PATIENCE * duration_ps(instead, config.scenario))
        waited_ns = 0 if idle_since is None else time.monotonic_ns() - idle_since
        return patience_ps // _PS_PER_NS - waited_ns

    def _wait(self, dispatcher: Dispatcher, patience_ns: int) -> list[Arrival]:
        if patience_ns > 0:
            return self._transport.wait(timedelta(microseconds=patience_ns / 1e3)) or []
        arrivals = self._transport.wait(self._timeout)
        if arrivals is None:
            awaited = ", ".join(dispatcher.awaited())
            raise TimeoutError(
                f"rank {self._rank} Timed out after {self._timeout}: nothing came from {awaited}",
                rank=self._rank,
            )
        return arrivals

    @staticmethod
    def _note(arrival: Arrival, dispatcher: Dispatcher, begin: int) -> Came:
        address, sent_ns, arrived_ns, nbytes = arrival
        sender = sender_of(address)
        dispatcher.arrived(sender)
        return Came(sender, arrived_ns - begin, arrived_ns - sent_ns, nbytes)

    def _read_core_times(self) -> Callable[[], CoreTimes] | None:
        """Return the function that reads the calling thread's times, which is opened once."""
        thread, read = self._core_times
        if thread != threading.get_native_id():
            read = open_core_times()
            self._core_times = threading.get_native_id(), read
        return read

    def _channels(self, config: StepConfig, *, training: bool) -> dict[tuple[int, bool], list[int]]:
        """Return the microbatches of each channel from another rank, in the order of the sends.

        A channel is (receiving stage, True for gradients).
        """
        plan = config.plan
        found: dict[tuple[int, bool], list[int]] = {}
        for stage in self._workers:
            for other, backward in ((stage - 1, False), (stage + 1, True)):
                if not 0 <= other < plan.stages or plan.placement[other] == self._rank:
                    continue
                if backward and not training:
                    continue
                program = plan.programs[plan.placement[other]]
                order = [
                    each.microbatch
                    for each in program
                    if each.stage == other
                    and each.kind is not Kind.W
                    and each.kind.backward == backward
                ]
                found[stage, backward] = order if config.order == "fixed" else sorted(order)
        return found

"""The simulation of a pipeline plan on ranks and channels.

Each rank runs its instructions in a fixed order, as planned, or as inputs become ready.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from random import Random

from slackline.errors import UsageError
from slackline.plan.pipeline import (
    PATIENCE,
    Dispatcher,
    Instruction,
    Kind,
    Order,
    PipelinePlan,
    Scenario,
    duration_ps,
    held_after,
    planned_waits_ps,
)
from slackline.sim._delegation import Delegates
from slackline.sim._events import Clock, EventQueue
from slackline.sim._network import ChannelState, Network, Turn

__all__ = ["PipelineExecution", "Run", "Span", "simulate"]

Compute = Callable[[int, Instruction, int, Callable[[], None]], None]
"""A function (rank, instruction, picoseconds, then): brings the instruction's input to the rank's
device, computes for that time, then calls `then`."""
Transfer = Callable[[int, int, Instruction], None]
"""A function that sends an instruction's result to another rank, and calls `arrived` when the
result arrives."""


@dataclass(frozen=True, slots=True)
class Span:
    """An instruction that was computed, with its start and end.

    The copy of a delegated message to the device is a part of the instruction that needs it.
    """

    instruction: Instruction
    start_ps: int
    end_ps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The result of a simulation."""

    spans: tuple[tuple[Span, ...], ...]
    """For each rank, the instructions that it computed, in order."""
    makespan_ps: int
    """The time from 0 to the end of the last instruction."""
    bubble_share: Fraction
    """The part of all ranks' time up to the makespan in which they computed nothing."""
    peak_activations: tuple[Fraction, ...]
    """The largest number of activations that each stage held at once."""
    blocked_ps: tuple[int, ...]
    """For each rank, the time for which a send stopped its work (head-of-line blocking)."""


def simulate(
    plan: PipelinePlan,
    scenario: Scenario,
    network: Network | None = None,
    *,
    order: Order = "fixed",
    in_flight: Sequence[int] | None = None,
    patience: Fraction = PATIENCE,
    expected: Scenario | None = None,
) -> Run:
    """Simulate the plan; without a network, links have the scenario's delays.

    The plan must be valid, and the result is deterministic. In order "ready", the plan gives only
    the set of instructions and the placement of stages. In order "planned", the plan's times are
    computed from `expected`, by default from `scenario`. `patience` is the further time for which a
    rank waits for the planned instruction, as a fraction of the duration of the instruction that it
    would start instead. Raises UsageError where plan, scenario and network differ in stages.
    """
    if plan.stages != scenario.stages:
        raise UsageError(f"the plan has {plan.stages} stages, the scenario {scenario.stages}")
    if network is None:
        network = Network.of(scenario)
    if len(network.forward) != plan.stages - 1:
        raise UsageError(
            f"{plan.stages} stages need {plan.stages - 1} links, not {len(network.forward)}"
        )
    events = EventQueue()

    channels = _Channels(events, network, plan)

    def compute(
        rank: int, instruction: Instruction, work_ps: int, then: Callable[[], None]
    ) -> None:
        channels.fetch(rank, instruction, lambda: events.at(events.now_ps + work_ps, then))

    execution = PipelineExecution(
        events,
        plan,
        scenario,
        compute=compute,
        transfer=channels.transfer,
        order=order,
        in_flight=in_flight,
        patience=patience,
        expected=expected,
    )
    channels.execution = execution
    execution.settle()
    events.run(execution.settle)
    return execution.outcome()


class PipelineExecution:
    """The ranks of one pipeline: each computes the instructions that its dispatcher chooses."""

    def __init__(
        self,
        events: Clock,
        plan: PipelinePlan,
        scenario: Scenario,
        *,
        compute: Compute,
        transfer: Transfer,
        order: Order = "fixed",
        in_flight: Sequence[int] | None = None,
        patience: Fraction = PATIENCE,
        expected: Scenario | None = None,
        computed: Callable[[int, Instruction], None] | None = None,
    ) -> None:
        """Prepare the ranks; `settle` starts them. `computed` is called after each instruction."""
        self.plan = plan
        self._scenario, self._events = scenario, events
        self._compute, self._transfer, self._computed = compute, transfer, computed
        self._dispatchers = [
            Dispatcher(plan, rank, scenario, order, in_flight) for rank in range(plan.ranks)
        ]
        self._spans: list[list[Span]] = [[] for _ in range(plan.ranks)]
        self._busy = [False] * plan.ranks
        self._patience = patience
        planned = order == "planned"
        self._waits_ps = planned_waits_ps(plan, expected or scenario) if planned else ()
        self._free_since_ps = [0] * plan.ranks
        self._blocked_since_ps: list[int | None] = [None] * plan.ranks
        self._blocked_ps = [0] * plan.ranks
        self._awake = set(range(plan.ranks))

    @property
    def finished(self) -> bool:
        """Whether all ranks have computed everything."""
        return all(dispatcher.finished for dispatcher in self._dispatchers)

    def outcome(self) -> Run:
        """Return the result; raise InternalError where a rank could not go on."""
        for dispatcher in self._dispatchers:
            if not dispatcher.finished:
                raise dispatcher.stuck()
        makespan = max(span.end_ps for spans in self._spans for span in spans)
        busy = sum(span.end_ps - span.start_ps for spans in self._spans for span in spans)
        return Run(
            spans=tuple(map(tuple, self._spans)),
            makespan_ps=makespan,
            bubble_share=1 - Fraction(busy, makespan * self.plan.ranks),
            peak_activations=self._peaks(),
            blocked_ps=tuple(self._blocked_ps),
        )

    def settle(self) -> None:
        """Let each rank that an event has woken choose its next instruction."""
        while self._awake:
            for rank in sorted(self._awake):
                self._awake.remove(rank)
                self._go_on(rank)

    def arrived(self, rank: int, instruction: Instruction) -> None:
        """Give a rank the result of another rank's instruction."""
        self._dispatchers[rank].arrived(instruction)
        self._awake.add(rank)

    def block(self, rank: int) -> None:
        """Stop a rank's computations until `unblock` is called."""
        self._blocked_since_ps[rank] = self._events.now_ps

    def unblock(self, rank: int) -> None:
        """Let a rank that `block` has stopped continue."""
        since_ps = self._blocked_since_ps[rank]
        if since_ps is not None:
            self._blocked_ps[rank] += self._events.now_ps - since_ps
            self._blocked_since_ps[rank] = None
            self._awake.add(rank)

    def _go_on(self, rank: int) -> None:
        """Start the rank's next instruction if the rank is free and an instruction may start."""
        if self._busy[rank] or self._blocked_since_ps[rank] is not None:
            return
        now_ps = self._events.now_ps
        instruction = self._next(rank, now_ps)
        if instruction is None:
            return
        self._busy[rank] = True
        work_ps = duration_ps(instruction, self._scenario)
        ended = partial(self._ended, rank, instruction, now_ps)
        self._compute(rank, instruction, work_ps, ended)

    def _next(self, rank: int, now_ps: int) -> Instruction | None:
        """Return the instruction that the rank starts now; None where the rank waits.

        In order "planned", a rank may wait for its planned instruction although another instruction
        is ready.
        """
        dispatcher = self._dispatchers[rank]
        instead = dispatcher.instead()
        if instead is None:
            return dispatcher.next()
        until = self._free_since_ps[rank] + self._waits_ps[rank][dispatcher.position]
        until += int(self._patience * duration_ps(instead, self._scenario))
        instruction = dispatcher.next(patient=now_ps < until)
        if instruction is None:
            self._events.at(until, self._awake.add, rank)
        return instruction

    def _ended(self, rank: int, instruction: Instruction, start_ps: int) -> None:
        self._spans[rank].append(Span(instruction, start_ps, self._events.now_ps))
        self._busy[rank] = False
        self._free_since_ps[rank] = self._events.now_ps
        self._dispatchers[rank].done(instruction)
        self._awake.add(rank)
        stage = instruction.stage
        to = None
        if instruction.kind is Kind.F and stage + 1 < self.plan.stages:
            to = self.plan.placement[stage + 1]
        elif instruction.kind.backward and stage > 0:
            to = self.plan.placement[stage - 1]
        if to is not None and to != rank:
            self._transfer(rank, to, instruction)
        if self._computed is not None:
            self._computed(rank, instruction)

    def _peaks(self) -> tuple[Fraction, ...]:
        scenario = self._scenario
        held, peak = [0] * scenario.stages, [0] * scenario.stages
        for spans in self._spans:
            for span in spans:
                stage = span.instruction.stage
                held[stage] += held_after(span.instruction, scenario)
                peak[stage] = max(peak[stage], held[stage])
        return tuple(
            memory.activations(most) for memory, most in zip(scenario.memory, peak, strict=True)
        )


class _Channels:
    """The channels of a pipeline's links while a simulation runs."""

    execution: PipelineExecution

    def __init__(self, events: EventQueue, network: Network, plan: PipelinePlan) -> None:
        self._events, self._network, self._plan = events, network, plan
        self._random = Random(network.seed)
        self._states: dict[tuple[int, int], ChannelState] = {}
        self._turns: dict[tuple[int, int], Turn] = {}
        self._behind: dict[int, ChannelState] = {}
        given = network.delegation
        self._delegates = None if given is None else Delegates(events, given, plan.ranks)

    def fetch(self, rank: int, instruction: Instruction, then: Callable[[], None]) -> None:
        """Copy an instruction's input to the rank's device, if delegates have carried it."""
        link, other = _origin(instruction, self._plan.stages)
        if self._delegates is None or link is None or self._plan.placement[other] == rank:
            then()
        else:
            self._delegates.copy(rank, self._bytes(link), then)

    def transfer(self, rank: int, to: int, instruction: Instruction) -> None:
        """Send a result; with head-of-line blocking the sender may have to stop."""
        forward = instruction.kind is Kind.F
        link = instruction.stage if forward else instruction.stage - 1
        channel = (self._network.forward if forward else self._network.backward)[link]
        nbytes, now_ps = self._bytes(link), self._events.now_ps
        if self._delegates is not None:
            arrived = partial(self.execution.arrived, to, instruction)
            self._delegates.send(
                rank, to, nbytes, lambda: channel.latency_at(self._events.now_ps), arrived
            )
            return
        state = self._state(rank, to)
        arrival_ps = state.send(channel, now_ps, nbytes)
        if arrival_ps == now_ps:
            self._arrived(rank, to, instruction, state)
            return
        self._events.at(arrival_ps, self._arrived, rank, to, instruction, state)
        if self._network.head_of_line and state.under_way > self._network.queue_depth:
            self._behind[rank] = state
            self.execution.block(rank)

    def _state(self, rank: int, to: int) -> ChannelState:
        """Return the queue of messages from a rank to another."""
        if (rank, to) not in self._states:
            both = (min(rank, to), max(rank, to)) if self._network.half_duplex else (rank, to)
            turn = self._turns.setdefault(both, Turn())
            state = ChannelState(self._random, turn, serial=self._network.serial)
            self._states[rank, to] = state
        return self._states[rank, to]

    def _bytes(self, link: int) -> int:
        sizes = self._network.message_bytes
        return sizes[link] if sizes else 0

    def _arrived(self, sender: int, to: int, instruction: Instruction, state: ChannelState) -> None:
        state.under_way -= 1
        self.execution.arrived(to, instruction)
        if self._behind.get(sender) is state:
            del self._behind[sender]
            self.execution.unblock(sender)


def _origin(instruction: Instruction, stages: int) -> tuple[int | None, int]:
    """Return the link that the input of an instruction crosses, and the stage that sends it.

    The link is None where the input comes from the same stage.
    """
    stage = instruction.stage
    if instruction.kind is Kind.F and stage > 0:
        return stage - 1, stage - 1
    if instruction.kind.backward and stage + 1 < stages:
        return stage, stage + 1
    return None, stage

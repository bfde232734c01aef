"""The simulation of a pipeline plan on ranks and channels.

The order is fixed, as planned, or chosen as inputs become ready.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
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
from slackline.sim._events import EventQueue
from slackline.sim._network import ChannelState, Network

__all__ = ["Run", "Span", "simulate"]


@dataclass(frozen=True, slots=True)
class Span:
    """An instruction that was computed, with its start and end."""

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
    """For each rank, the time that it stood still behind a send (head-of-line blocking)."""


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
    those that it has in `expected`, by default `scenario`, and `patience` is the further time for
    which a rank waits for the planned instruction, as a fraction of the one it would start instead.
    Raises UsageError where plan, scenario and network differ in stages.
    """
    if plan.stages != scenario.stages:
        raise UsageError(f"the plan has {plan.stages} stages, the scenario {scenario.stages}")
    if network is None:
        network = Network.of(scenario)
    if len(network.forward) != plan.stages - 1:
        raise UsageError(
            f"{plan.stages} stages need {plan.stages - 1} links, not {len(network.forward)}"
        )
    return _Simulation(
        plan, scenario, network, order, in_flight, patience, expected or scenario
    ).run()


class _Simulation:
    def __init__(
        self,
        plan: PipelinePlan,
        scenario: Scenario,
        network: Network,
        order: Order,
        in_flight: Sequence[int] | None,
        patience: Fraction,
        expected: Scenario,
    ) -> None:
        self._plan, self._scenario, self._network = plan, scenario, network
        self._events = EventQueue()
        self._dispatchers = [
            Dispatcher(plan, rank, scenario, order, in_flight) for rank in range(plan.ranks)
        ]
        random = Random(network.seed)
        links = range(plan.stages - 1)
        self._down = [ChannelState(network.forward[link], random) for link in links]
        self._up = [ChannelState(network.backward[link], random) for link in links]
        self._spans: list[list[Span]] = [[] for _ in range(plan.ranks)]
        self._busy = [False] * plan.ranks
        self._patience = patience
        self._waits_ps = planned_waits_ps(plan, expected) if order == "planned" else ()
        self._free_since_ps = [0] * plan.ranks
        self._behind: list[tuple[ChannelState, int] | None] = [None] * plan.ranks
        self._blocked_ps = [0] * plan.ranks
        self._awake = set(range(plan.ranks))

    def run(self) -> Run:
        self._settle()
        self._events.run(self._settle)
        for dispatcher in self._dispatchers:
            if not dispatcher.finished:
                raise dispatcher.stuck()
        makespan = max(span.end_ps for spans in self._spans for span in spans)
        busy = sum(span.end_ps - span.start_ps for spans in self._spans for span in spans)
        return Run(
            spans=tuple(map(tuple, self._spans)),
            makespan_ps=makespan,
            bubble_share=1 - Fraction(busy, makespan * self._plan.ranks),
            peak_activations=self._peaks(),
            blocked_ps=tuple(self._blocked_ps),
        )

    def _settle(self) -> None:
        """Let every rank that an event has reached choose its next instruction."""
        while self._awake:
            for rank in sorted(self._awake):
                self._awake.remove(rank)
                self._go_on(rank)

    def _go_on(self, rank: int) -> None:
        """Start the rank's next instruction, if the rank is free and has one to start."""
        if self._busy[rank] or self._behind[rank] is not None:
            return
        now = self._events.now_ps
        instruction = self._next(rank, now)
        if instruction is None:
            return
        end = now + duration_ps(instruction, self._scenario)
        self._busy[rank] = True
        self._spans[rank].append(Span(instruction, now, end))
        self._events.at(end, lambda: self._ended(rank, instruction))

    def _next(self, rank: int, now: int) -> Instruction | None:
        """Return the instruction that the rank starts now; None where the rank waits.

        In order "planned", a rank may wait for its planned instruction although another one is
        ready.
        """
        dispatcher = self._dispatchers[rank]
        instead = dispatcher.instead()
        if instead is None:
            return dispatcher.next()
        until = self._free_since_ps[rank] + self._waits_ps[rank][dispatcher.position]
        until += int(self._patience * duration_ps(instead, self._scenario))
        instruction = dispatcher.next(patient=now < until)
        if instruction is None:
            self._events.at(until, lambda: self._awake.add(rank))
        return instruction

    def _ended(self, rank: int, instruction: Instruction) -> None:
        self._busy[rank] = False
        self._free_since_ps[rank] = self._events.now_ps
        self._dispatchers[rank].done(instruction)
        self._awake.add(rank)
        self._send(rank, instruction)

    def _send(self, rank: int, instruction: Instruction) -> None:
        """Send the output of the instruction to the stage that needs it, unless on the same
        rank.
        """
        stage = instruction.stage
        if instruction.kind is Kind.F and stage + 1 < self._plan.stages:
            to, link, channel = stage + 1, stage, self._down
        elif instruction.kind.backward and stage > 0:
            to, link, channel = stage - 1, stage - 1, self._up
        else:
            return
        receiver = self._plan.placement[to]
        if receiver == rank:
            return
        sizes = self._network.message_bytes
        state = channel[link]
        arrival = state.send(self._events.now_ps, sizes[link] if sizes else 0)
        if arrival == self._events.now_ps:
            self._arrived(receiver, instruction, state)
            return
        self._events.at(arrival, lambda: self._arrived(receiver, instruction, state))
        if self._network.head_of_line and state.under_way > self._network.queue_depth:
            self._behind[rank] = (state, self._events.now_ps)

    def _arrived(self, receiver: int, instruction: Instruction, state: ChannelState) -> None:
        """Deliver a message to its receiver, and resume a sender that was blocked behind it."""
        state.under_way -= 1
        self._dispatchers[receiver].arrived(instruction)
        sender = self._plan.placement[instruction.stage]
        behind = self._behind[sender]
        if behind is not None and behind[0] is state:
            self._behind[sender] = None
            self._blocked_ps[sender] += self._events.now_ps - behind[1]
            self._awake.add(sender)
        self._awake.add(receiver)

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

"""What a rank computes next: the rule that the runtime and the simulator share.

In order "fixed" a rank keeps to its program and waits where an input is missing. In order "ready"
it takes, of what has its inputs, a B before an F before a W, each stage's in microbatch order,
among stages what comes first in the program; an F only while the stage's cap has room for one
more. In order "planned" it takes the program's next where that can start, and else what "ready"
would: the plan as long as its times hold, readiness where they do not. Whether they hold is seen
by waiting: a rank is patient as long as the plan itself waits there (`planned_waits_ps`), and
`PATIENCE` of what it would start instead, since messages never come to the microsecond.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

from slackline.errors import InternalError, UsageError
from slackline.plan.pipeline._instruction import Instruction, Kind
from slackline.plan.pipeline._plan import PipelinePlan
from slackline.plan.pipeline._replay import held_after, needs
from slackline.plan.pipeline._scenario import Scenario

__all__ = ["PATIENCE", "Dispatcher", "Order"]

Order = Literal["fixed", "ready", "planned"]

PATIENCE = Fraction(1, 4)
"""In order "planned": how much longer than planned the program's next is waited for, as a part of
what would be started in its place."""

_RANKING = {Kind.B: 0, Kind.BW: 0, Kind.F: 1, Kind.W: 2}


class Dispatcher:
    """The state of one rank: no clock, no threads; who calls it computes and sends.

    `next` gives what to start and takes it off the list, `done` tells that it has ended, `arrived`
    that the message which an F or a backward of this rank needs is there. Whatever the calls' order
    in time, each stage's W's come in microbatch order, so gradients are added in the same order.

    Never stuck, in orders "ready" and "planned": of the microbatches with no W yet take the first
    one; see `list_schedule`, whose argument asks only that every stage's cap holds one activation.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        rank: int,
        scenario: Scenario,
        order: Order = "ready",
        in_flight: Sequence[int] | None = None,
    ) -> None:
        """`in_flight`: of each stage at most so many microbatches between F and B; not "fixed"."""
        if order not in ("fixed", "ready", "planned"):
            raise UsageError(f'order must be "fixed", "ready" or "planned", not "{order}"')
        if not 0 <= rank < plan.ranks:
            raise UsageError(f"rank must be from 0 to {plan.ranks - 1}, not {rank}")
        self._plan, self._rank, self._scenario, self._order = plan, rank, scenario, order
        self._program = plan.programs[rank]
        self._in_flight = in_flight
        self._position = 0
        self._started = [False] * len(self._program)
        self._queues: dict[tuple[int, int], list[tuple[int, Instruction]]] = {}
        for index, each in enumerate(self._program):
            self._queues.setdefault((each.stage, _RANKING[each.kind]), []).append((index, each))
        for queue in self._queues.values():
            queue.sort(key=lambda entry: entry[1].microbatch, reverse=True)
        self._there: set[tuple[int, bool, int]] = set()
        self._held = dict.fromkeys(self._stages(), 0)
        self._flying = dict.fromkeys(self._stages(), 0)
        self._left = len(self._program)

    @property
    def finished(self) -> bool:
        """Whether everything has been started."""
        return self._left == 0

    @property
    def position(self) -> int:
        """Which instruction of the program is its next; not in order "ready"."""
        while self._position < len(self._program) and self._started[self._position]:
            self._position += 1
        return self._position

    def arrived(self, instruction: Instruction) -> None:
        """The message of a neighbour's F or backward is there: `instruction` is what sent it."""
        kind = instruction.kind
        if kind is Kind.W:
            raise UsageError(f"{instruction} sends no message")
        self._there.add((instruction.stage, kind.backward, instruction.microbatch))

    def done(self, instruction: Instruction) -> None:
        """What `next` gave has been computed."""
        stage = instruction.stage
        if instruction.kind is not Kind.F:
            self._held[stage] += held_after(instruction, self._scenario)
        if instruction.kind is not Kind.W:
            self.arrived(instruction)
        if instruction.kind.backward:
            self._flying[stage] -= 1

    def next(self, *, patient: bool = False) -> Instruction | None:
        """What to start now; None when everything that is left waits for a message or memory.

        `patient`: in order "planned" nothing but the program's next.
        """
        if self._order == "fixed":
            taken = self._next_fixed()
        elif self._order == "planned":
            taken = self._next_planned() or (None if patient else self._next_ready())
        else:
            taken = self._next_ready()
        if taken is None:
            return None
        self._left -= 1
        if taken.kind is Kind.F:
            self._held[taken.stage] += held_after(taken, self._scenario)
            self._flying[taken.stage] += 1
        return taken

    def instead(self) -> Instruction | None:
        """What patience keeps from being started: what `next` would give that is not patient."""
        if self._order != "planned":
            return None
        found = self._first_ready()
        return None if found is None else found[-1][1]

    def _next_fixed(self) -> Instruction | None:
        if self._position == len(self._program):
            return None
        instruction = self._program[self._position]
        if not self._has_inputs(instruction):
            return None
        self._position += 1
        return instruction

    def _next_planned(self) -> Instruction | None:
        if self.position == len(self._program):
            return None
        instruction = self._program[self._position]
        queue = self._queues[instruction.stage, _RANKING[instruction.kind]]
        if queue[-1][0] != self._position or not self._may_start(instruction):
            return None
        self._started[self._position] = True
        return queue.pop()[1]

    def _next_ready(self) -> Instruction | None:
        source = self._first_ready()
        if source is None:
            return None
        index, taken = source.pop()
        self._started[index] = True
        return taken

    def _first_ready(self) -> list[tuple[int, Instruction]] | None:
        """The queue whose head readiness takes."""
        best: tuple[int, int] | None = None
        source: list[tuple[int, Instruction]] | None = None
        for (_, ranking), queue in self._queues.items():
            if not queue:
                continue
            index, instruction = queue[-1]
            if (best is None or (ranking, index) < best) and self._may_start(instruction):
                best, source = (ranking, index), queue
        return source

    def _may_start(self, instruction: Instruction) -> bool:
        if not self._has_inputs(instruction):
            return False
        if instruction.kind is not Kind.F:
            return True
        stage = instruction.stage
        memory = self._scenario.memory[stage]
        if self._in_flight is not None and self._flying[stage] >= max(1, self._in_flight[stage]):
            return False
        return memory.cap is None or self._held[stage] + memory.activation <= memory.cap

    def _has_inputs(self, instruction: Instruction) -> bool:
        stage, microbatch = instruction.stage, instruction.microbatch
        match instruction.kind:
            case Kind.F:
                return stage == 0 or (stage - 1, False, microbatch) in self._there
            case Kind.W:
                return (stage, True, microbatch) in self._there
        if (stage, False, microbatch) not in self._there:
            return False
        return stage + 1 == self._plan.stages or (stage + 1, True, microbatch) in self._there

    def _stages(self) -> list[int]:
        return [stage for stage, rank in enumerate(self._plan.placement) if rank == self._rank]

    def awaited(self) -> list[str]:
        """The messages that what is left could start with, by what sends them: "2F0"."""
        if self._order == "fixed":
            heads = [self._program[self._position]]
        else:
            heads = [queue[-1][1] for queue in self._queues.values() if queue]
        return [
            str(Instruction(stage, Kind.B if backward else Kind.F, microbatch))
            for head in heads
            for stage, backward, microbatch in needs(head, self._plan.stages)
            if (stage, backward, microbatch) not in self._there and stage != head.stage
        ]

    def stuck(self) -> InternalError:
        """The error to raise when nothing computes or travels any more and work is left."""
        left = sorted(queue[-1] for queue in self._queues.values() if queue)
        first = self._program[self._position] if self._order == "fixed" else left[0][1]
        return InternalError(f"rank {self._rank} waits for ever to start {first}", rank=self._rank)

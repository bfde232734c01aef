"""The rule that chooses a rank's next computation, shared by the runtime and the simulator.

In order "fixed", a rank runs its program in sequence and waits where an input is missing. In order
"ready", a rank chooses among the instructions whose inputs are there: a B (backward for the input)
before an F (forward) before a W (backward for the weights). The rank takes each stage's
instructions in microbatch order, and among stages the one that comes first in the program. An F
starts only while the stage's memory cap has room for one more activation. In order "planned", a
rank runs the program's next instruction where that can start, and otherwise the instruction that
"ready" would choose. The plan is therefore kept as long as messages arrive at the planned times.
Before a rank departs from the plan, it waits as long as the plan itself waits there
(`planned_waits_ps`). It then waits for a further time, `PATIENCE` times the duration of the
instruction that it would start instead, since no message arrives exactly on time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from slackline.errors import InternalError, UsageError
from slackline.plan.pipeline._instruction import Instruction, Kind
from slackline.plan.pipeline._plan import PipelinePlan, Program
from slackline.plan.pipeline._replay import held_after, needs
from slackline.plan.pipeline._scenario import Scenario

__all__ = ["PATIENCE", "Dispatcher", "Order", "RankProgram"]

Order = Literal["fixed", "ready", "planned"]

PATIENCE = Fraction(1, 4)
"""In order "planned", the further wait for the program's next instruction beyond the planned wait.

The value is a fraction of the duration of the instruction that would start in its place.
"""

_RANKING = {Kind.B: 0, Kind.BW: 0, Kind.F: 1, Kind.W: 2}


Result = tuple[int, bool, int]
"""The identity of a computation's result: (stage, True for a gradient, microbatch)."""


@dataclass(frozen=True, slots=True)
class RankProgram:
    """The program of one rank with its dependencies, which the dispatchers of all steps share."""

    plan: PipelinePlan
    rank: int
    program: Program
    needs: tuple[frozenset[Result], ...]
    """The messages and computations that each instruction of the program depends on."""
    queues: tuple[tuple[int, tuple[tuple[int, Instruction], ...]], ...]
    """For each stage and kind, the ranking of the kind, and the instructions with their indices,
    the last microbatch first."""
    stages: tuple[int, ...]
    """The stages that the rank has."""

    @classmethod
    def of(cls, plan: PipelinePlan, rank: int) -> "RankProgram":
        """Return the program of `rank`; raise UsageError for an unknown rank."""
        if not 0 <= rank < plan.ranks:
            raise UsageError(f"rank must be from 0 to {plan.ranks - 1}, not {rank}")
        program = plan.programs[rank]
        queues: dict[tuple[int, int], list[tuple[int, Instruction]]] = {}
        for index, each in enumerate(program):
            queues.setdefault((each.stage, _RANKING[each.kind]), []).append((index, each))
        for queue in queues.values():
            queue.sort(key=lambda entry: entry[1].microbatch, reverse=True)
        return cls(
            plan,
            rank,
            program,
            tuple([frozenset(needs(each, plan.stages)) for each in program]),
            tuple([(ranking, tuple(queue)) for (_, ranking), queue in queues.items()]),
            tuple([stage for stage, place in enumerate(plan.placement) if place == rank]),
        )


class Dispatcher:
    """The scheduling state of one rank, without a clock or threads: the caller computes and sends.

    `next` gives the instruction to start and removes it from the list. `done` reports that an
    instruction has ended, and `arrived` that a message for an F (forward) or a backward of this
    rank has arrived. Each stage's W's (backwards for the weights) are given in microbatch order,
    whatever the timing of the calls, so gradients are always added in the same order.

    In orders "ready" and "planned" the pipeline never deadlocks. The argument is that of
    `list_schedule`, which asks only that every stage's cap admits one activation.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        rank: int,
        scenario: Scenario,
        order: Order = "ready",
        in_flight: Sequence[int] | None = None,
        program: RankProgram | None = None,
    ) -> None:
        """Prepare the queues of one rank; raise UsageError for an unknown order or rank.

        `in_flight` limits, for each stage, the microbatches between forward and backward. Order
        "fixed" ignores `in_flight`. `program` is that of `plan` and `rank`; None makes one.
        """
        if order not in ("fixed", "ready", "planned"):
            raise UsageError(f'order must be "fixed", "ready" or "planned", not "{order}"')
        known = RankProgram.of(plan, rank) if program is None else program
        self._plan, self._rank, self._scenario, self._order = plan, rank, scenario, order
        self._program, self._needs = known.program, known.needs
        self._in_flight = in_flight
        self._position = 0
        self._started = [False] * len(self._program)
        self._queues = [(ranking, list(queue)) for ranking, queue in known.queues]
        self._there: set[Result] = set()
        self._held = dict.fromkeys(known.stages, 0)
        self._flying = dict.fromkeys(known.stages, 0)
        self._left = len(self._program)

    @property
    def finished(self) -> bool:
        """Whether all instructions have been started."""
        return self._left == 0

    @property
    def position(self) -> int:
        """The index of the first instruction of the program that has not started.

        The index has no meaning in order "ready".
        """
        while self._position < len(self._program) and self._started[self._position]:
            self._position += 1
        return self._position

    def arrived(self, instruction: Instruction) -> None:
        """Record that the message of `instruction`, a forward or a backward, has arrived."""
        kind = instruction.kind
        if kind is Kind.W:
            raise UsageError(f"{instruction} sends no message")
        self._there.add((instruction.stage, kind.backward, instruction.microbatch))

    def done(self, instruction: Instruction) -> None:
        """Record that an instruction given by `next` has been computed."""
        stage, kind = instruction.stage, instruction.kind
        if kind is not Kind.F:
            self._held[stage] += held_after(instruction, self._scenario)
            if kind.backward:
                self._flying[stage] -= 1
        if kind is not Kind.W:
            self._there.add((stage, kind.backward, instruction.microbatch))

    def next(self, *, patient: bool = False) -> Instruction | None:
        """Return the instruction to start now, or None when the rank must wait.

        The rank waits when every instruction left lacks a message or memory. With `patient`, order
        "planned" gives only the program's next instruction.
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
        """Return the instruction that `next` would give in order "planned" without `patient`.

        Returns None in the other orders, and where no instruction is ready.
        """
        if self._order != "planned":
            return None
        found = self._first_ready()
        return None if found is None else found[-1][1]

    def _next_fixed(self) -> Instruction | None:
        if self._position == len(self._program):
            return None
        instruction = self._program[self._position]
        if not self._needs[self._position] <= self._there:
            return None
        self._position += 1
        return instruction

    def _next_planned(self) -> Instruction | None:
        if self.position == len(self._program):
            return None
        place = self._position
        instruction = self._program[place]
        if not self._may_start(place, instruction):
            return None
        for _, queue in self._queues:
            if queue and queue[-1][0] == place:
                self._started[place] = True
                return queue.pop()[1]
        return None

    def _next_ready(self) -> Instruction | None:
        source = self._first_ready()
        if source is None:
            return None
        index, taken = source.pop()
        self._started[index] = True
        return taken

    def _first_ready(self) -> list[tuple[int, Instruction]] | None:
        """Return the queue whose head the "ready" rule chooses, or None."""
        best: tuple[int, int] | None = None
        source: list[tuple[int, Instruction]] | None = None
        there, needed = self._there, self._needs
        for ranking, queue in self._queues:
            if not queue:
                continue
            index, instruction = queue[-1]
            if (
                needed[index] <= there
                and (best is None or (ranking, index) < best)
                and self._may_start(index, instruction)
            ):
                best, source = (ranking, index), queue
        return source

    def _may_start(self, index: int, instruction: Instruction) -> bool:
        if not self._needs[index] <= self._there:
            return False
        if instruction.kind is not Kind.F:
            return True
        stage = instruction.stage
        memory = self._scenario.memory[stage]
        if self._in_flight is not None and self._flying[stage] >= max(1, self._in_flight[stage]):
            return False
        return memory.cap is None or self._held[stage] + memory.activation <= memory.cap

    def awaited(self) -> list[str]:
        """Return the texts of the instructions whose messages the rank awaits, such as "2F0"."""
        if self._order == "fixed":
            heads = [self._program[self._position]]
        else:
            heads = [queue[-1][1] for _, queue in self._queues if queue]
        return [
            str(Instruction(stage, Kind.B if backward else Kind.F, microbatch))
            for head in heads
            for stage, backward, microbatch in needs(head, self._plan.stages)
            if (stage, backward, microbatch) not in self._there and stage != head.stage
        ]

    def stuck(self) -> InternalError:
        """Return the error to raise when no rank computes, no message travels and work is left."""
        left = sorted(queue[-1] for _, queue in self._queues if queue)
        first = self._program[self._position] if self._order == "fixed" else left[0][1]
        return InternalError(f"rank {self._rank} waits for ever to start {first}", rank=self._rank)

"""The execution of one collective's plan, segment by segment, as the engine executes it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slackline.errors import UsageError
from slackline.plan.collective import CollectivePlan
from slackline.sim._machine import Machine
from slackline.sim._operation import Operation
from slackline.sim._rotation import Rotation

__all__ = ["Arithmetic", "Execution", "SentFrame", "Symbols"]


class Arithmetic(Protocol):
    """The values that a simulation moves, and the functions that reduce them."""

    def contribution(self, rank: int, chunk: int, segment: int) -> Any:
        """Return the value of a rank for one segment of a chunk."""

    def add(self, incoming: Any, mine: Any, *, last: bool) -> Any:
        """Return the result of an ADD; `last` where the chunk is then complete."""

    def reduce(self, values: Sequence[Any]) -> Any:
        """Return the result of a REDUCE_ALL over the values of all ranks, in rank order."""


class Symbols:
    """Symbolic values, which show the order of their reduction: "((x0 + x1) + x2)"."""

    def contribution(self, rank: int, chunk: int, segment: int) -> str:
        """Return "x3" for rank 3."""
        return f"x{rank}"

    def add(self, incoming: str, mine: str, *, last: bool) -> str:
        """Return the sum of the received value and the rank's own value."""
        return f"({incoming} + {mine})"

    def reduce(self, values: Sequence[str]) -> str:
        """Return the sum in the order of the values."""
        total = values[0]
        for value in values[1:]:
            total = f"({total} + {value})"
        return total


@dataclass(frozen=True, slots=True)
class SentFrame:
    """A frame that a member has handed to its NICs."""

    source: int
    target: int
    chunk: int
    segment: int
    payload_bytes: int
    partial: bool
    """Whether the value is not final: a rank's own data or a partial sum."""
    queued_ps: int
    """The time at which the frame joined the queue of the host."""


class _Values:
    """The values of an execution; the native machine refers to a value by its number."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self._arithmetic = arithmetic
        self._values: list[Any] = []

    def __getitem__(self, number: int) -> Any:
        return self._values[number]

    def contribute(self, rank: int, chunk: int, segment: int) -> int:
        """Return the number of a rank's own value of a segment."""
        return self._keep(self._arithmetic.contribution(rank, chunk, segment))

    def add(self, incoming: int, mine: int, last: bool) -> int:
        """Return the number of the result of an ADD."""
        values = self._values
        return self._keep(self._arithmetic.add(values[incoming], values[mine], last=last))

    def reduce(self, numbers: Sequence[int]) -> int:
        """Return the number of the result of a REDUCE_ALL."""
        return self._keep(self._arithmetic.reduce([self._values[number] for number in numbers]))

    def _keep(self, value: Any) -> int:
        self._values.append(value)
        return len(self._values) - 1


class Execution:
    """An operation on the members of a machine; each member begins when `begin` is called."""

    def __init__(
        self,
        machine: Machine,
        operation: Operation,
        *,
        members: Sequence[int] | None = None,
        arithmetic: Arithmetic | None = None,
        ended: Callable[[int], None] | None = None,
        record: bool = False,
        rotation: Rotation | None = None,
    ) -> None:
        """Prepare an operation: member k of its plan is member `members[k]` of the machine.

        Without `members`, the plan's members are the first members of the machine. `ended(k)` is
        called when member k of the plan has ended. With `record`, `frames` has every frame. With a
        `rotation` (all hosts do the same), only the ranks of the plan's host 0 are simulated: each
        frame that such a rank sends to another host arrives at a rank of host 0.
        """
        plan = operation.plan
        self.operation = operation
        self._ended = ended
        self._machine = machine
        count = plan.members if rotation is None else rotation.ranks_per_host
        of = tuple(range(count)) if members is None else tuple(members)
        if len(of) != count or max(of) >= len(machine.placement):
            raise UsageError(f"{plan} needs {count} members of {len(machine.placement)}, not {of}")
        compiled = operation.compiled if rotation is None else operation.compile(rotation)
        self._values = None if arithmetic is None else _Values(arithmetic)
        self._token = machine.expect_ends(self._end)
        self._core = machine.core.execute(compiled, of, self._token, record, self._values)
        if self._values is not None:
            self._lay_out(self._values)

    @property
    def finished(self) -> bool:
        """Whether all members have ended."""
        return self._core.finished

    @property
    def messages(self) -> int:
        """The number of frames that were sent."""
        return self._core.messages

    @property
    def frames(self) -> tuple[SentFrame, ...]:
        """The frames in the order in which they were queued; empty unless they were recorded."""
        return tuple(SentFrame(*frame) for frame in self._core.frames)

    def ended_ps(self, member: int) -> int:
        """Return the time at which a member ended; UsageError where it has not."""
        time_ps = self._core.ended_ps(member)
        if time_ps < 0:
            raise UsageError(f"member {member} has not ended")
        return time_ps

    def begin(self, member: int) -> None:
        """Begin a member's program: the first segment of every chunk, the second, and so on."""
        self._core.begin(member)

    def values(self, rank: int) -> dict[int, tuple[Any, ...]]:
        """Return the final values that are due at a rank: by chunk, segment by segment.

        Without arithmetic the result is empty.
        """
        plan = self.operation.plan
        if self._values is None:
            return {}
        due = (
            chunk
            for chunk in range(plan.chunks)
            if plan.collective.due(rank, chunk, plan.ranks, plan.root)
            and (plan.runs is None or chunk < plan.ranks)
        )
        return {chunk: self._values_of(self._values, rank, chunk) for chunk in due}

    def _end(self, member: int) -> None:
        if self.finished:
            self._machine.forget_ends(self._token)
        if self._ended is not None:
            self._ended(member)

    def _lay_out(self, values: _Values) -> None:
        """Give each rank its contribution to every chunk that its program mentions."""
        plan = self.operation.plan
        for rank in range(plan.ranks):
            for chunk in _contributed(plan, rank):
                if plan.collective.has(rank, chunk, plan.ranks, plan.root):
                    for segment in range(len(self.operation.segment_counts(chunk))):
                        number = values.contribute(rank, chunk, segment)
                        self._core.set_value(rank, chunk, segment, number)

    def _values_of(self, values: _Values, rank: int, chunk: int) -> tuple[Any, ...]:
        numbers = [
            self._core.value(rank, chunk, segment)
            for segment in range(len(self.operation.segment_counts(chunk)))
        ]
        # A chunk without instructions keeps the rank's contribution.
        return tuple(
            values[values.contribute(rank, chunk, segment) if number is None else number]
            for segment, number in enumerate(numbers)
        )


def _contributed(plan: CollectivePlan, rank: int) -> list[int]:
    """Return the chunks to which a rank may contribute: in a tree the parts of its own nodes."""
    if plan.runs is None:
        return sorted({instruction.chunk for instruction in plan.programs[rank]})
    nodes = plan.contributions(rank)
    return [part + plan.ranks * node for node in nodes for part in range(plan.ranks)]

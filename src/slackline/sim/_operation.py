"""A collective to simulate: a plan, the sizes of its chunks, and the size of their segments."""

from dataclasses import dataclass
from functools import cached_property

from slackline.errors import UsageError
from slackline.plan.collective import (
    PLANS,
    Collective,
    CollectivePlan,
    Instruction,
    Kind,
    Program,
    cutting,
    split,
)

__all__ = ["Operation", "Step", "Strand"]


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction and what the simulation derives from the member's program."""

    instruction: Instruction
    turn: int
    """The number of earlier sends to, or receives from, the same peer about the same chunk: equal
    on both sides, since messages about one chunk arrive in the order sent."""
    partial: bool
    """Whether a SEND carries a value that is not final."""


@dataclass(frozen=True, slots=True)
class Strand:
    """The steps that each segment of one chunk passes at one member, in order."""

    chunk: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A plan with sizes; `count` elements are those of all chunks together.

    In all_to_all, where a rank has n of the n * n chunks, `count` is the size of one rank's buffer.
    """

    plan: CollectivePlan
    count: int
    itemsize: int = 4
    """The bytes of an element: a divisor of 64."""
    partial_itemsize: int | None = None
    """The bytes of an element of a partial: 4 for half types in rank order; None: `itemsize`. Plans
    without an ADD have no partials."""
    segment_bytes: int | None = None
    """The size of a segment; None: as the engine cuts."""
    limit_bytes: int = 128 << 10
    """The longest segment where the engine's rule applies."""
    onset: int = 1
    """The segments that a helper has of every rank before it reduces: 1 is cut-through, 0 is the
    whole message (store-and-forward)."""
    priority: int = 0
    """The place of the frames in the queues of NICs: lower is sent first."""

    def __post_init__(self) -> None:
        split(self.count, 1, self.itemsize)
        for name in ("segment_bytes", "partial_itemsize"):
            value = getattr(self, name)
            if value is not None and value < self.itemsize:
                raise UsageError(f"{name} must be at least {self.itemsize}, not {value}")
        if self.limit_bytes < self.itemsize:
            raise UsageError(
                f"limit_bytes must be at least {self.itemsize}, not {self.limit_bytes}"
            )
        if self.onset < 0:
            raise UsageError(f"onset must not be negative, not {self.onset}")

    @cached_property
    def chunk_counts(self) -> tuple[int, ...]:
        """The elements of each chunk."""
        plan = self.plan
        parts = plan.ranks if plan.collective is Collective.ALL_TO_ALL else plan.chunks
        sizes = tuple(size for _, size in split(self.count, parts, self.itemsize, plan.weights))
        return sizes * (plan.chunks // parts)

    @cached_property
    def forwards(self) -> bool:
        """Whether some member sends of a chunk after it has received of it."""
        row = PLANS.get((self.plan.collective, self.plan.name))
        if row is not None:
            return row.forwards_from is not None and self.plan.ranks >= row.forwards_from
        return any(map(_forwards, self.plan.programs))

    @cached_property
    def _widest(self) -> int:
        adds = any(instruction.kind is Kind.ADD for _, _, instruction in self.plan.cells())
        return self.partial_itemsize if adds and self.partial_itemsize else self.itemsize

    def segment_counts(self, chunk: int) -> tuple[int, ...]:
        """Return the elements of each segment of a chunk; an empty chunk has one of 0."""
        count = self.chunk_counts[chunk]
        if self.segment_bytes is not None:
            most = max(1, self.segment_bytes // self.itemsize)
        else:
            unit = self._widest
            rule = cutting(self.plan.helpers)
            most = rule.elements(count, unit, self.limit_bytes, forwards=self.forwards)
        full, rest = divmod(count, most)
        return (most,) * full + ((rest,) if rest or not full else ())

    def payload_bytes(self, count: int, *, partial: bool) -> int:
        """Return the bytes of so many elements on a wire."""
        return count * (self._widest if partial else self.itemsize)

    def strands(self, member: int) -> tuple[Strand, ...]:
        """Return the strands of one member, in order of each chunk's first instruction."""
        return _strands(self.plan.programs[member], self.plan.collective)


def _forwards(program: Program) -> bool:
    received: set[int] = set()
    for instruction in program:
        if instruction.kind.receives:
            received.add(instruction.chunk)
        elif instruction.kind is Kind.SEND and instruction.chunk in received:
            return True
    return False


def _strands(program: Program, collective: Collective) -> tuple[Strand, ...]:
    steps: dict[int, list[Step]] = {}
    turns: dict[tuple[bool, int, int], int] = {}
    partial: dict[int, bool] = {}
    for instruction in program:
        kind, chunk = instruction.kind, instruction.chunk
        side = (kind is Kind.SEND, instruction.peer, chunk)
        turn = turns.get(side, 0)
        turns[side] = turn + 1
        if kind is Kind.COPY or kind is Kind.FOLD or instruction.last:
            partial[chunk] = False
        sends_partial = kind is Kind.SEND and partial.get(chunk, collective.reduces)
        steps.setdefault(chunk, []).append(Step(instruction, turn, sends_partial))
    return tuple(Strand(chunk, tuple(listed)) for chunk, listed in steps.items())

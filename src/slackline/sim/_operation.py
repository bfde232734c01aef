"""A collective to simulate: a plan, the sizes of its chunks, and the size of their segments."""

from dataclasses import dataclass
from functools import cached_property

import slackline._native as _native
from slackline.errors import UsageError
from slackline.plan.collective import (
    PLANS,
    Collective,
    CollectivePlan,
    Kind,
    Program,
    cutting,
    split,
)
from slackline.sim._rotation import Rotation

__all__ = ["Operation"]

_MOST_BYTES = 1 << 48
"""The largest segment that can be simulated."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A plan with sizes; `count` is the number of elements of all chunks together.

    In all_to_all, where a rank has n of the n * n chunks, `count` is the size of one rank's buffer;
    in a sum in a tree, of one node.
    """

    plan: CollectivePlan
    count: int
    itemsize: int = 4
    """The bytes of an element: a divisor of 64."""
    partial_itemsize: int | None = None
    """The bytes of an element of a partial: 4 for half types in rank order; None: `itemsize`. Plans
    without an ADD have no partials."""
    segment_bytes: int | None = None
    """The size of a segment; None applies the engine's rule for cutting chunks."""
    limit_bytes: int = 128 << 10
    """The longest segment where the engine's rule applies."""
    onset: int = 1
    """The number of segments that a helper receives from every rank before it reduces: 1 is
    cut-through, 0 stands for the whole message (store-and-forward)."""
    priority: int = 0
    """The priority of the frames in the queues of NICs: frames of a lower value are sent first."""

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
            raise UsageError(f"onset must be at least 0, not {self.onset}")

    @cached_property
    def chunk_counts(self) -> tuple[int, ...]:
        """The elements of each chunk."""
        plan = self.plan
        whole = plan.collective is Collective.ALL_TO_ALL or plan.runs is not None
        parts = plan.ranks if whole else plan.chunks
        sizes = tuple(size for _, size in split(self.count, parts, self.itemsize, plan.weights))
        return sizes * (plan.chunks // parts)

    @cached_property
    def forwards(self) -> bool:
        """Whether some member sends part of a chunk after it has received part of that chunk."""
        row = PLANS.get((self.plan.collective, self.plan.name))
        if row is not None:
            return row.forwards_from is not None and self.plan.ranks >= row.forwards_from
        return any(map(_forwards, self.plan.programs))

    @cached_property
    def _widest(self) -> int:
        adds = any(instruction.kind is Kind.ADD for _, _, instruction in self.plan.cells())
        return self.partial_itemsize if adds and self.partial_itemsize else self.itemsize

    def segment_counts(self, chunk: int) -> tuple[int, ...]:
        """Return the elements of each segment of a chunk; an empty chunk has one empty segment."""
        most, full, rest = self._cut(self.chunk_counts[chunk])
        return (most,) * full + ((rest,) if rest or not full else ())

    def payload_bytes(self, count: int, *, partial: bool) -> int:
        """Return the bytes of `count` elements on a wire."""
        return count * (self._widest if partial else self.itemsize)

    @cached_property
    def compiled(self) -> _native.SimulatedPlan:
        """The operation in the form that the native machine executes."""
        return self.compile(None)

    def compile(self, rotation: Rotation | None) -> _native.SimulatedPlan:
        """Return the native form of the plan; with a rotation, of the programs of host 0 alone.

        Raises UsageError where the plan sends a chunk to a rank that takes no part in it, and for
        segments that are too long.
        """
        plan = self.plan
        cuts = {count: self._cut(count) for count in set(self.chunk_counts)}
        longest = max((cut[0] if cut[1] else cut[2] for cut in cuts.values()), default=0)
        if longest * self._widest > _MOST_BYTES:
            raise UsageError(
                f"a segment can have at most {_MOST_BYTES} bytes, not {longest * self._widest}"
            )
        members = plan.members if rotation is None else rotation.ranks_per_host
        turn = None
        if rotation is not None:
            turn = rotation.hosts, rotation.ranks_per_host, rotation.turns_chunks
        try:
            return _native.SimulatedPlan(
                plan.ranks,
                [cuts[count] for count in self.chunk_counts],
                self.itemsize,
                self._widest,
                self.onset,
                self.priority,
                plan.collective.reduces,
                turn,
                (_tuples(plan.programs[member]) for member in range(members)),
                () if plan.runs is None else plan.runs.owners,
            )
        except ValueError as error:
            raise UsageError(f"{plan}: {error}") from None

    def _cut(self, count: int) -> tuple[int, int, int]:
        """Return the elements of a full segment, the count of full segments, the elements left."""
        if self.segment_bytes is not None:
            most = max(1, self.segment_bytes // self.itemsize)
        else:
            unit, limit = self._widest, self.limit_bytes
            if self.plan.runs is not None:
                # A quarter of the longest segment of other plans: see Builder::cut of the engine.
                return self._divided(max(1, limit // 4 // unit), count)
            rule = cutting(self.plan.helpers)
            most = rule.elements(count, unit, limit, forwards=self.forwards)
        return self._divided(most, count)

    @staticmethod
    def _divided(most: int, count: int) -> tuple[int, int, int]:
        return most, *divmod(count, most)


def _tuples(program: Program) -> list[tuple[int, int, int, bool]]:
    return [(int(each.kind), max(each.peer, 0), each.chunk, each.last) for each in program]


def _forwards(program: Program) -> bool:
    received: set[int] = set()
    for instruction in program:
        if instruction.kind.receives:
            received.add(instruction.chunk)
        elif instruction.kind is Kind.SEND and instruction.chunk in received:
            return True
    return False

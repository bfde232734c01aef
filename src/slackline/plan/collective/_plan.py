"""A plan of a collective: the list of instructions of each rank, as data.

A collective says with which chunks each rank starts and must end. An instruction is a step of one
rank on one chunk, and has a text form of one word (token): "SEND_2C0" sends chunk 0 to rank 2.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Self, overload

from slackline._lazy import record
from slackline.errors import UsageError
from slackline.plan.collective._split import check_weights
from slackline.units import count

if TYPE_CHECKING:
    from slackline.plan.collective._sum_tree import Runs

__all__ = [
    "NOBODY",
    "Collective",
    "CollectivePlan",
    "Instruction",
    "Kind",
    "LazyPrograms",
    "Part",
    "Program",
]


class Collective(IntEnum):
    """A communication operation of a group; the values are the codes in the frame header."""

    ALL_REDUCE = 1
    REDUCE_SCATTER = 2
    ALL_GATHER = 3
    BROADCAST = 4
    REDUCE = 5
    GATHER = 6
    SCATTER = 7
    ALL_TO_ALL = 8
    BARRIER = 9
    POINT_TO_POINT = 10

    @property
    def label(self) -> str:
        """The collective's name in texts and messages, such as "all_reduce"."""
        return self.name.lower()

    @property
    def reduces(self) -> bool:
        """Whether the collective combines the ranks' contributions; a barrier's are empty."""
        return self in _REDUCING

    @property
    def splits(self) -> bool:
        """Whether the chunks of the collective's plans are parts of one buffer."""
        return self in _SPLITTING

    @property
    def rooted(self) -> bool:
        """Whether the collective has a root; the root of POINT_TO_POINT is the sender."""
        return self in _ROOTED

    def has(self, rank: int, chunk: int, ranks: int, root: int | None) -> bool:
        """Return whether `rank` has data for `chunk` before the first instruction."""
        match self:
            case Collective.ALL_GATHER | Collective.GATHER:
                return rank == chunk
            case Collective.BROADCAST | Collective.SCATTER | Collective.POINT_TO_POINT:
                return rank == root
            case Collective.ALL_TO_ALL:
                return rank == chunk // ranks
            case _:
                return True

    def due(self, rank: int, chunk: int, ranks: int, root: int | None) -> bool:
        """Return whether `rank` must have the final value of `chunk` after the last instruction."""
        match self:
            case Collective.REDUCE_SCATTER | Collective.SCATTER:
                return rank == chunk
            case Collective.REDUCE | Collective.GATHER:
                return rank == root
            case Collective.ALL_TO_ALL:
                return rank == chunk % ranks
            case Collective.POINT_TO_POINT:
                return rank != root
            case _:
                return True


_REDUCING = {
    Collective.ALL_REDUCE,
    Collective.REDUCE_SCATTER,
    Collective.REDUCE,
    Collective.BARRIER,
}
_SPLITTING = {
    Collective.ALL_REDUCE,
    Collective.REDUCE,
    Collective.BROADCAST,
    Collective.BARRIER,
    Collective.POINT_TO_POINT,
}
_ROOTED = {
    Collective.BROADCAST,
    Collective.REDUCE,
    Collective.GATHER,
    Collective.SCATTER,
    Collective.POINT_TO_POINT,
}


NOBODY = -1
"""The peer of an instruction that has no peer: -1."""


class Kind(IntEnum):
    """The operation of an instruction on "mine", the rank's current value of the chunk."""

    SEND = 0
    """Send the rank's value of the chunk: its own data, a partial or the final value."""
    ADD = 1
    """Receive a partial value and reduce it into the rank's own: mine = op(incoming, mine)."""
    COPY = 2
    """Receive the final value of the chunk and store it."""
    BUFFER = 3
    """Receive the peer's own contribution and buffer it for a later REDUCE_ALL."""
    REDUCE_ALL = 4
    """Reduce all buffered contributions and the rank's own in rank order; completes the chunk."""

    @property
    def receives(self) -> bool:
        """Whether the instruction waits for its peer."""
        return self in (Kind.ADD, Kind.COPY, Kind.BUFFER)


_TOKEN = re.compile(
    r"(?P<kind>[A-Z_]+)_(?P<peer>0|[1-9][0-9]*)?C(?P<chunk>0|[1-9][0-9]*)(?P<last>!)?"
)


@record(frozen=True, slots=True)
class Instruction:
    """A step of a plan: do `kind` with `peer` to `chunk`.

    A rank runs the instructions of one chunk in the order listed.
    """

    kind: Kind
    peer: int
    """The peer's rank; NOBODY in a REDUCE_ALL."""
    chunk: int
    last: bool = False
    """Whether this ADD completes the chunk: averages divide and half types are rounded here."""

    def __post_init__(self) -> None:
        if self.kind is Kind.REDUCE_ALL and self.peer != NOBODY:
            raise UsageError(f"a REDUCE_ALL has no peer: peer must be -1, not {self.peer}")
        if self.kind is not Kind.REDUCE_ALL and self.peer < 0:
            raise UsageError(f"peer must be a rank, not {self.peer}")
        if self.chunk < 0:
            raise UsageError(f"chunk must be at least 0, not {self.chunk}")
        if self.last and self.kind is not Kind.ADD:
            raise UsageError(f"only an ADD can be marked last, not a {self.kind.name}")

    def __str__(self) -> str:
        """Return the text form: "SEND_2C0", "REDUCE_ALL_C0"; "ADD_1C3!" where `last` is set."""
        peer = "" if self.peer == NOBODY else self.peer
        return f"{self.kind.name}_{peer}C{self.chunk}{'!' if self.last else ''}"

    @classmethod
    def parse(cls, token: str) -> Self:
        """Parse an instruction's text form; raise UsageError that quotes an invalid text."""
        match = _TOKEN.fullmatch(token)
        if match is None or match["kind"] not in Kind.__members__:
            kinds = ", ".join(Kind.__members__)
            raise UsageError(f'"{token}" is no instruction like "ADD_1C3!"; kinds are {kinds}')
        peer = NOBODY if match["peer"] is None else int(match["peer"])
        return cls(Kind[match["kind"]], peer, int(match["chunk"]), match["last"] is not None)


Program = tuple[Instruction, ...]
"""A rank's instructions; those of the same chunk run in the order listed."""


@record(frozen=True, slots=True)
class LazyPrograms(Sequence[Program]):
    """The programs of all members of a plan; each access to a program generates it anew."""

    make: Callable[..., Iterator[Instruction]]
    """A function (member, *arguments) -> instructions."""
    members: int
    arguments: tuple[int, ...]

    def __len__(self) -> int:
        return self.members

    @overload
    def __getitem__(self, member: int) -> Program: ...
    @overload
    def __getitem__(self, member: slice) -> tuple[Program, ...]: ...
    def __getitem__(self, member: int | slice) -> Program | tuple[Program, ...]:
        members = range(self.members)[member]
        if isinstance(members, range):
            return tuple(map(self.__getitem__, members))
        return tuple(self.make(members, *self.arguments))

    def __iter__(self) -> Iterator[Program]:
        return (self[member] for member in range(self.members))


@record(frozen=True, slots=True, kw_only=True)
class CollectivePlan:
    """The programs of all ranks of one collective; `validate` checks that they compute its result.

    In all_reduce, reduce, broadcast, barrier and point_to_point, `split` cuts one buffer into
    `chunks` chunks. In reduce_scatter, all_gather, gather and scatter, chunk i is rank i's part. In
    all_to_all, chunk i * ranks + j goes from rank i to rank j, and chunk i * ranks + i stays on
    rank i. With `runs`, the ranks contribute the nodes of a tree, and chunk i + ranks * j is part i
    of node j.
    """

    name: str
    collective: Collective
    ranks: int
    chunks: int
    root: int | None = None
    """The root rank of a rooted collective, else None."""
    programs: Sequence[Program]
    """One program for each rank, then one for each helper."""
    rank_ordered: bool
    """Whether the plan reduces in rank order, ((x0 op x1) op x2) ..., which fixes the rounding."""
    helpers: int = 0
    """The number of members without data of their own (aggregators), which follow the ranks."""
    weights: tuple[int, ...] | None = None
    """The weight of each chunk's part of the buffer; None cuts evenly. See `split`."""
    runs: "Runs | None" = None
    """The ranks' runs of leaves in a plan that reduces in a tree, else None."""

    @property
    def members(self) -> int:
        """The number of ranks and helpers together."""
        return self.ranks + self.helpers

    def contributions(self, rank: int) -> tuple[int, ...]:
        """Return the numbers of what `rank` contributes to a sum: its nodes, or its own number."""
        if self.runs is None:
            return (rank,)
        return tuple(node for node, owner in enumerate(self.runs.owners) if owner == rank)

    def strand(self, instruction: Instruction) -> int:
        """Return the chunk whose instructions on a rank run in order with this one.

        This is the instruction's own chunk, but for a node that waits for the sum of its part.
        """
        if self.runs is not None and instruction.kind is Kind.BUFFER:
            return instruction.chunk % self.ranks
        return instruction.chunk

    def __post_init__(self) -> None:
        check_ranks(self.collective, self.ranks, self.root)
        if self.chunks < 1:
            raise UsageError(f"chunks must be a positive integer, not {self.chunks}")
        if self.helpers < 0:
            raise UsageError(f"helpers must be at least 0, not {self.helpers}")
        if self.weights is not None:
            if not self.collective.splits:
                raise UsageError(f"{self.collective.label} cuts no buffer and takes no weights")
            check_weights(self.weights, self.chunks)
        if self.runs is not None and len(self.runs.lengths) != self.ranks:
            raise UsageError(f"{count(self.ranks, 'rank')} need a run of leaves each")
        if len(self.programs) != self.members:
            who = count(self.ranks, "rank")
            if self.helpers:
                who += f" and {count(self.helpers, 'helper')}"
            raise UsageError(f"{who} need {self.members} programs, not {len(self.programs)}")

    def __str__(self) -> str:
        root = "" if self.root is None else f", root {self.root}"
        return f"{self.collective.label} {self.name}, {count(self.ranks, 'rank')}{root}"

    def cells(self) -> Iterator[tuple[int, int, Instruction]]:
        """Yield every (member, index, instruction), member by member."""
        for rank, program in enumerate(self.programs):
            for index, instruction in enumerate(program):
                yield rank, index, instruction


@record(frozen=True, slots=True, kw_only=True)
class Part:
    """A member's program, with the properties of the whole plan that the member must know."""

    name: str
    collective: Collective
    ranks: int
    helpers: int
    chunks: int
    member: int
    """The member's rank, or for a helper a number from `ranks` on."""
    program: Program
    forwards: bool
    """Whether, for some root, some member sends part of a chunk after receiving part of that
    chunk."""
    adds: bool
    """Whether some member computes a partial sum, by an ADD."""
    runs: "Runs | None" = None
    """The ranks' runs of leaves in a plan that reduces in a tree, else None."""

    @property
    def members(self) -> int:
        """The number of ranks and helpers together."""
        return self.ranks + self.helpers


def check_ranks(collective: Collective, ranks: int, root: int | None) -> None:
    """Check that a plan of the collective can have these ranks and this root; raise UsageError."""
    if ranks < 1:
        raise UsageError(f"ranks must be a positive integer, not {ranks}")
    if collective is Collective.POINT_TO_POINT and ranks > 2:
        raise UsageError(f"point_to_point has at most 2 ranks, not {ranks}")
    if collective.rooted and (root is None or not 0 <= root < ranks):
        raise UsageError(f"{collective.label} needs a root from 0 to {ranks - 1}, not {root}")
    if not collective.rooted and root is not None:
        raise UsageError(f"{collective.label} takes no root, not {root}")

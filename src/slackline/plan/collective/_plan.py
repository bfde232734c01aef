"""A plan of a collective: the list of instructions of each rank, as data."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from slackline.errors import UsageError
from slackline.plan.collective._collective import Collective
from slackline.plan.collective._instruction import Instruction
from slackline.plan.collective._split import check_weights

__all__ = ["CollectivePlan", "LazyPrograms", "Part", "Program"]

Program = tuple[Instruction, ...]
"""A rank's instructions; those of the same chunk run in the order listed."""


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePlan:
    """The programs of all ranks of one collective; `validate` checks that they compute its result.

    In all_reduce, reduce, broadcast, barrier and point_to_point, `split` cuts one buffer into
    `chunks` chunks. In reduce_scatter, all_gather, gather and scatter, chunk i is rank i's part. In
    all_to_all, chunk i * ranks + j goes from rank i to rank j, and chunk i * ranks + i stays on
    rank i.
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

    @property
    def members(self) -> int:
        """The number of ranks and helpers together."""
        return self.ranks + self.helpers

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
        if len(self.programs) != self.members:
            who = f"{self.ranks} ranks"
            if self.helpers:
                who += f" and {self.helpers} helper{'s' if self.helpers > 1 else ''}"
            raise UsageError(f"{who} need {self.members} programs, not {len(self.programs)}")

    def __str__(self) -> str:
        root = "" if self.root is None else f", root {self.root}"
        return f"{self.collective.label} {self.name}, {self.ranks} ranks{root}"

    def cells(self) -> Iterator[tuple[int, int, Instruction]]:
        """Yield every (member, index, instruction), member by member."""
        for rank, program in enumerate(self.programs):
            for index, instruction in enumerate(program):
                yield rank, index, instruction


@dataclass(frozen=True, slots=True, kw_only=True)
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

"""A plan: what each rank of a collective does, as data."""

from collections.abc import Iterator
from dataclasses import dataclass

from slackline.errors import UsageError
from slackline.plan.collective._collective import Collective
from slackline.plan.collective._instruction import Instruction

__all__ = ["CollectivePlan", "Part", "Program"]

Program = tuple[Instruction, ...]
"""What one rank does: one chunk's instructions in listed order, different chunks independently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePlan:
    """The programs of all ranks; whether they reach the right result is for `validate` to say.

    Layouts: all_reduce, reduce, broadcast, barrier and point_to_point cut one buffer into `chunks`
    parts by `split`. In reduce_scatter, all_gather, gather and scatter chunk i is rank i's part. In
    all_to_all chunk i * ranks + j goes from rank i to rank j, and chunk i * ranks + i stays where
    it is.
    """

    name: str
    collective: Collective
    ranks: int
    chunks: int
    root: int | None = None
    """The special rank of a rooted collective, else None."""
    programs: tuple[Program, ...]
    """One for each rank, then one for each helper."""
    rank_ordered: bool
    """Every reduced value is ((x0 op x1) op x2) ...: its bits depend on neither plan nor size."""
    helpers: int = 0
    """Members after the ranks, who have no data of their own and are due none."""

    @property
    def members(self) -> int:
        """The ranks and the helpers."""
        return self.ranks + self.helpers

    def __post_init__(self) -> None:
        check_ranks(self.collective, self.ranks, self.root)
        if self.chunks < 1:
            raise UsageError(f"chunks must be a positive integer, not {self.chunks}")
        if self.helpers < 0:
            raise UsageError(f"helpers must not be negative, not {self.helpers}")
        if len(self.programs) != self.members:
            who = f"{self.ranks} ranks"
            if self.helpers:
                who += f" and {self.helpers} helper{'s' if self.helpers > 1 else ''}"
            raise UsageError(f"{who} need {self.members} programs, not {len(self.programs)}")

    def __str__(self) -> str:
        root = "" if self.root is None else f", root {self.root}"
        return f"{self.collective.label} {self.name}, {self.ranks} ranks{root}"

    def cells(self) -> Iterator[tuple[int, int, Instruction]]:
        """Every (member, index, instruction), member by member."""
        for rank, program in enumerate(self.programs):
            for index, instruction in enumerate(program):
                yield rank, index, instruction


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One member's program, and what it must know of the plan as a whole."""

    name: str
    collective: Collective
    ranks: int
    helpers: int
    chunks: int
    member: int
    """A rank; the ranks' number and above for a helper."""
    program: Program
    forwards: bool
    """Whether, for some root, some member sends of a chunk after it has received of it."""
    adds: bool
    """Whether some member makes a partial sum."""

    @property
    def members(self) -> int:
        """The ranks and the helpers."""
        return self.ranks + self.helpers


def check_ranks(collective: Collective, ranks: int, root: int | None) -> None:
    """Raises UsageError where no plan of the collective can have these ranks and this root."""
    if ranks < 1:
        raise UsageError(f"ranks must be a positive integer, not {ranks}")
    if collective is Collective.POINT_TO_POINT and ranks > 2:
        raise UsageError(f"point_to_point has at most 2 ranks, not {ranks}")
    if collective.rooted and (root is None or not 0 <= root < ranks):
        raise UsageError(f"{collective.label} needs a root from 0 to {ranks - 1}, not {root}")
    if not collective.rooted and root is not None:
        raise UsageError(f"{collective.label} takes no root, not {root}")

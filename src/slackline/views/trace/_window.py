"""Records of several ranks that belong together, held until the last of them has come."""

from collections.abc import Collection, Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Family", "Window"]

T = TypeVar("T")


class Family(NamedTuple, Generic[T]):
    """The records of one collective, message or pipeline step, by rank."""

    members: dict[int, T]
    """The record of each rank that has one."""
    complete: bool
    """Whether every rank that takes part has its record."""


class Window(Generic[T]):
    """The families that still lack records of some ranks, in bounded memory."""

    def __init__(self, most: int) -> None:
        """Hold at most `most` records; beyond that, families leave as they are, oldest first."""
        self._most = most
        self._held: dict[Hashable, dict[int, T]] = {}
        self._count = 0

    def add(
        self, name: Hashable, rank: int, record: T, ranks: Collection[int]
    ) -> Iterator[Family[T]]:
        """Add a rank's record to the family `name` of `ranks`; yield the families that leave.

        If the rank is in the family already, as after a restart, the record begins a new one.
        """
        if rank in self._held.get(name, ()):
            yield self._release(name, complete=False)
        members = self._held.setdefault(name, {})
        members[rank] = record
        self._count += 1
        if len(members) == len(ranks):
            yield self._release(name, complete=True)
        while self._count > self._most:
            yield self._release(next(iter(self._held)), complete=False)

    def finish(self) -> Iterator[Family[T]]:
        """Yield the families that have remained, which lack records."""
        while self._held:
            yield self._release(next(iter(self._held)), complete=False)

    def _release(self, name: Hashable, *, complete: bool) -> Family[T]:
        members = self._held.pop(name)
        self._count -= len(members)
        return Family(members, complete)

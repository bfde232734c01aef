"""The members of a group, by generation: each loss of ranks begins a new generation."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from slackline.nic import Group

__all__ = ["KeyValueStore", "Membership", "first_membership"]


class KeyValueStore(Protocol):
    """A shared key-value store with compare-and-set, such as torch's stores."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The members of one generation of a group, as the survivors of lost ranks have agreed."""

    store: KeyValueStore
    generation: int
    me: int
    members: tuple[int, ...]
    """The members' ranks in the first group, in ascending order."""
    lost: Callable[[], frozenset[int]]
    """A function that returns the ranks of the first group that this rank has lost."""

    @property
    def key_prefix(self) -> str:
        """The prefix, in the store, of the keys of this generation of the group."""
        return f"slackline/generation/{self.generation}"

    def next(self) -> "Membership":
        """Return the next generation of the group, at first with the same members."""
        return replace(self, generation=self.generation + 1)


def first_membership(group: Group, store: KeyValueStore) -> Membership:
    """Return the membership of a new group, whose members are all its ranks."""
    return Membership(
        store=store,
        generation=0,
        me=group.rank,
        members=tuple(range(group.size)),
        lost=group.lost,
    )

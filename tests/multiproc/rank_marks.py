"""Marks that ranks leave in the store of their job: to wait for each other without a message.

A message of the group would not do. A rank may leave a barrier, and be killed, while others are
still in it.
"""

from collections.abc import Iterable

from torch import distributed as dist

__all__ = ["mark", "wait_for_marks"]


def mark(what: str) -> None:
    """Leave the mark of this rank."""
    _store().set(_key(what, dist.get_rank()), "")


def wait_for_marks(what: str, ranks: Iterable[int]) -> None:
    """Wait until each of these ranks has left that mark, for at most the store's timeout."""
    _store().wait([_key(what, rank) for rank in ranks])


def _key(what: str, rank: int) -> str:
    return f"{what} {rank}"


def _store() -> dist.Store:
    return dist.group.WORLD.get_group_store()

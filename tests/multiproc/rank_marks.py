"""Marks that ranks set in the store of their job, so that ranks can wait for each other without
messages.

A barrier of the group does not suffice: a rank may leave a barrier, and be killed, while other
ranks are still in it.
"""

from collections.abc import Iterable

from torch import distributed as dist

__all__ = ["mark", "wait_for_marks"]


def mark(what: str) -> None:
    """Set the mark `what` of this rank."""
    _store().set(_key(what, dist.get_rank()), "")


def wait_for_marks(what: str, ranks: Iterable[int]) -> None:
    """Wait until each of these ranks has set the mark `what`, for at most the store's timeout."""
    _store().wait([_key(what, rank) for rank in ranks])


def _key(what: str, rank: int) -> str:
    return f"{what} {rank}"


def _store() -> dist.Store:
    return dist.group.WORLD.get_group_store()

"""Replacement of the default group, after the loss of ranks, by a group of the survivors."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from slackline.backend import (
    Membership,
    SlacklineGroup,
    create,
    replace_default_group,
    slackline_group,
)
from slackline.elastic._agreement import RendezvousStore, agree
from slackline.errors import LinkError, PeerError, UsageError
from slackline.nic import Group

__all__ = ["Shrunk", "shrink"]


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """The result of a shrink of the default group: the new ranks, and the lost ranks."""

    rank: int
    size: int
    ranks: Mapping[int, int]
    """The new rank of every survivor, by its old rank."""
    lost: tuple[int, ...]
    """The old ranks of the lost members."""


def shrink(*, timeout: timedelta = timedelta(seconds=30), min_ranks: int = 1) -> Shrunk:
    """Replace the default group by a group of the surviving ranks, without a restart.

    Every survivor must call this function after a PeerError or LinkError. The call blocks until all
    survivors have called; new ranks are in the order of the old ranks. All other process groups of
    torch are destroyed with their posted operations, and models must be wrapped again. The engine
    and its links stay open.

    The survivors agree through the store of the first init_process_group, which must outlive every
    rank. Ranks that die during the call are excluded too.

    Raises TimeoutError on all survivors, with the ranks that are alive but have not called within
    `timeout`; call again to wait longer. Raises PeerError if fewer than `min_ranks` survive, or if
    the others went on without this rank because their links to it had failed; this rank must then
    exit. Raises LinkError if the store does not answer.
    """
    if timeout <= timedelta():
        raise UsageError(f"timeout must be positive, not {timeout}")
    if min_ranks < 1:
        raise UsageError(f"min_ranks must be positive, not {min_ranks}")
    group = slackline_group(None)
    before = group.membership
    assert before is not None  # Context sets it for each torch group
    deadline_ns = time.monotonic_ns() + timeout // timedelta(microseconds=1) * 1000
    after, opened = _meet_again(group, before, deadline_ns, min_ranks)
    replace_default_group(after, opened, timeout=group.default_timeout)
    survivors = [before.members.index(member) for member in after.members]
    return Shrunk(
        rank=opened.rank,
        size=opened.size,
        ranks={old: new for new, old in enumerate(survivors)},
        lost=tuple(old for old in range(len(before.members)) if old not in survivors),
    )


def _meet_again(
    group: SlacklineGroup, before: Membership, deadline_ns: int, min_ranks: int
) -> tuple[Membership, Group]:
    """Agree on the survivors until all of them have opened a group; return members and group.

    If a member is lost before its group is open, the other members agree again.
    """
    membership = before

    def call() -> None:
        gone = [r for r, member in enumerate(before.members) if member in before.lost()]
        names = ", ".join(f"rank {rank}" for rank in gone) or "nobody"
        create.abort(f"lost: {names}; the remaining ranks must call shrink")

    while True:
        membership, error = agree(membership, least=min_ranks, deadline_ns=deadline_ns, call=call)
        group.membership = membership  # A later call continues from this generation.
        if error is not None:
            raise error
        rendezvous = RendezvousStore(membership, deadline_ns)
        left_us = max(1, (deadline_ns - time.monotonic_ns()) // 1000)
        try:
            rendezvous.require_members()
            # After this meeting, no rank's engine accesses memory of the old groups any more.
            return membership, create.reopen(
                rendezvous,
                membership.members.index(membership.me),
                len(membership.members),
                timeout=group.default_timeout,
                opening=timedelta(microseconds=left_us),
            )
        except (PeerError, LinkError):
            if time.monotonic_ns() >= deadline_ns:
                raise

"""Replacement of the default group, after the loss of ranks, by one of the surviving processes."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from torch import distributed as dist

from slackline.backend._context import create
from slackline.backend._group import SlacklineGroup
from slackline.backend._membership import Agreement, MeetingPlace, agree
from slackline.backend._memory import slackline_group
from slackline.backend._torch import PrefixStore, Store
from slackline.errors import LinkError, PeerError, UsageError
from slackline.nic import Group

__all__ = ["Shrunk", "shrink"]


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """The result of a shrink of the default group: the new ranks, and the lost ones."""

    rank: int
    size: int
    ranks: Mapping[int, int]
    """The new rank of every survivor, by its old rank."""
    lost: tuple[int, ...]
    """The old ranks of the lost members."""


def shrink(*, timeout: timedelta = timedelta(seconds=30), min_ranks: int = 1) -> Shrunk:
    """Replace the default group by a group of the surviving ranks, without a restart.

    Every survivor must call it after a PeerError or LinkError. The call blocks until all survivors
    have called it; new ranks are in the order of the old ones. All other process groups of torch
    are destroyed with their posted operations, and models must be wrapped again. Engine and links
    stay.

    The survivors agree through the store of the first init_process_group, which must outlive every
    rank. Ranks that die during the call are left out too.

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
    before = group.agreement
    assert before is not None  # Context sets it for each torch group
    deadline_ns = time.monotonic_ns() + timeout // timedelta(microseconds=1) * 1000
    after, opened = _meet_again(group, before, deadline_ns, min_ranks)
    _replace(group, after, opened)
    survivors = [before.members.index(member) for member in after.members]
    return Shrunk(
        rank=opened.rank,
        size=opened.size,
        ranks={old: new for new, old in enumerate(survivors)},
        lost=tuple(old for old in range(len(before.members)) if old not in survivors),
    )


def _meet_again(
    group: SlacklineGroup, before: Agreement, deadline_ns: int, min_ranks: int
) -> tuple[Agreement, Group]:
    """Agree on the survivors until all of them have opened a group; return agreement and group.

    If a member is lost before its group is open, the others agree again.
    """
    agreement = before

    def call() -> None:
        gone = [r for r, member in enumerate(before.members) if member in before.lost()]
        names = ", ".join(f"rank {rank}" for rank in gone) or "nobody"
        create.abort(f"lost: {names}; the others are to call shrink")

    while True:
        agreement, error = agree(agreement, least=min_ranks, deadline_ns=deadline_ns, call=call)
        group.agreement = agreement  # A later call continues from this generation.
        if error is not None:
            raise error
        place = MeetingPlace(agreement, deadline_ns)
        left_us = max(1, (deadline_ns - time.monotonic_ns()) // 1000)
        try:
            place.check()
            # After this meeting, no rank's engine accesses memory of the old groups any more.
            return agreement, create.reopen(
                place,
                agreement.members.index(agreement.me),
                len(agreement.members),
                timeout=group.default_timeout,
                opening=timedelta(microseconds=left_us),
            )
        except (PeerError, LinkError):
            if time.monotonic_ns() >= deadline_ns:
                raise


def _replace(group: SlacklineGroup, agreement: Agreement, opened: Group) -> None:
    """Make `opened` torch's default group, and destroy all other process groups."""
    store = agreement.store
    assert isinstance(store, Store)
    backend = dist.get_backend()
    with create.handing_over(opened):
        dist.destroy_process_group()
        dist.init_process_group(
            backend,
            store=PrefixStore(f"{agreement.place}/torch", store),
            rank=opened.rank,
            world_size=opened.size,
            timeout=group.default_timeout,
        )
    slackline_group(None).agreement = agreement

"""Replacement of torch's default group by a group with other members, on the same engine."""

from datetime import timedelta

from torch import distributed as dist

from slackline.backend._context import create
from slackline.backend._memory import slackline_group
from slackline.backend._store_prefix import Membership
from slackline.backend._torch import PrefixStore, Store
from slackline.nic import Group

__all__ = ["replace_default_group"]


def replace_default_group(membership: Membership, opened: Group, *, timeout: timedelta) -> None:
    """Make `opened` torch's default group, and destroy all other process groups.

    `membership` has the members of `opened` and the store through which they agreed; `timeout`
    limits the operations of the new default group. Blocks until every member has made the call.
    """
    store = membership.store
    assert isinstance(store, Store)
    before = dist.is_initialized()
    backend = dist.get_backend() if before else "slackline"
    with create.handing_over(opened):
        if before:
            create.errors_are_known()  # They would end the destruction before the last group.
            dist.destroy_process_group()
        dist.init_process_group(
            backend,
            store=PrefixStore(f"{membership.key_prefix}/torch", store),
            rank=opened.rank,
            world_size=opened.size,
            timeout=timeout,
        )
    slackline_group(None).membership = membership

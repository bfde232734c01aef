"""Replacement of torch's default group by a group with fewer members, on the same engine."""

from torch import distributed as dist

from slackline.backend._context import create
from slackline.backend._group import SlacklineGroup
from slackline.backend._memory import slackline_group
from slackline.backend._store_prefix import Membership
from slackline.backend._torch import PrefixStore, Store
from slackline.nic import Group

__all__ = ["replace_default_group"]


def replace_default_group(before: SlacklineGroup, membership: Membership, opened: Group) -> None:
    """Make `opened` torch's default group, and destroy all other process groups.

    `before` is the present default group, whose timeout `opened` keeps; `membership` has the
    members of `opened` and the store through which they agreed. Blocks until every member has made
    the call.
    """
    store = membership.store
    assert isinstance(store, Store)
    backend = dist.get_backend()
    with create.handing_over(opened):
        dist.destroy_process_group()
        dist.init_process_group(
            backend,
            store=PrefixStore(f"{membership.key_prefix}/torch", store),
            rank=opened.rank,
            world_size=opened.size,
            timeout=before.default_timeout,
        )
    slackline_group(None).membership = membership

"""The torch.distributed backend "slackline".

    torch call ─ _group: Reductions, Moves, PointToPoint ─ _posting ─ nic.Group
                   │            │                            │
                 _codes       _stage (in place or copied)  _work, _transfers (what comes back)
                                └ _cuda (through pinned host memory, in order)

    _identity   what torch asks a group about itself
    _context    one engine for all groups of the process
    _memory     tensors in registered memory; from a torch group to the nic's
    _shrink     the default group without the ranks that were lost
    _membership who is still there: the survivors agree through the store
    _failures   what torch has made of an error
    _elastic    state that outlives a rank: whole steps, shared and saved

`register()` makes the name known; torch does it by itself through the package's entry point.
"""

from datetime import timedelta

from slackline._registration import register
from slackline.backend._context import Context, open_native
from slackline.backend._failures import failure_of
from slackline.backend._group import SlacklineGroup
from slackline.backend._memory import counters, empty, group_of, zeros
from slackline.backend._shrink import Shrunk, shrink_default

__all__ = [
    "Context",
    "Shrunk",
    "SlacklineGroup",
    "counters",
    "create",
    "empty",
    "failure_of",
    "group_of",
    "register",
    "shrink",
    "zeros",
]

create = Context(open_native)
"""What torch calls for each new group of this process; the owner of its engine."""


def shrink(*, timeout: timedelta = timedelta(seconds=30), min_ranks: int = 1) -> Shrunk:
    """Replace the default group by one of the ranks that are still there, without a restart.

    Every survivor calls it, once it has met a PeerError or LinkError; it returns when all of them
    have, with new ranks in the old order. All other process groups of torch are destroyed, and
    whatever was posted in them; models must be wrapped anew. Engine and links stay.

    The survivors agree through the store of the first init_process_group, which has to outlive any
    rank. Ranks that die meanwhile are left out too.

    Raises TimeoutError, on all survivors, that names the ranks which are alive but have not come
    within `timeout`; call it again to go on waiting. PeerError where fewer than `min_ranks` are
    left, or where the others went on without this rank because their links to it had failed: it has
    to leave. LinkError when the store does not answer.
    """
    return shrink_default(create, timeout=timeout, min_ranks=min_ranks)

"""The torch.distributed backend "slackline".

    torch call ─ _group: Reductions, Moves, PointToPoint ─ _posting ─ nic.Group
                   │            │                            │
                 _codes       _stage (in place or copied)  _work, _transfers (what comes back)
                                └ _cuda (through pinned host memory, in order)

    _identity   what torch asks a group about itself
    _context    one engine for all groups of the process
    _memory     tensors in registered memory; from a torch group to the nic's

`register()` makes the name known; torch does it by itself through the package's entry point.
"""

from slackline._registration import register
from slackline.backend._context import Context, open_native
from slackline.backend._group import SlacklineGroup
from slackline.backend._memory import counters, empty, group_of, zeros

__all__ = [
    "Context",
    "SlacklineGroup",
    "counters",
    "create",
    "empty",
    "group_of",
    "register",
    "zeros",
]

create = Context(open_native)
"""What torch calls for each new group of this process; the owner of its engine."""

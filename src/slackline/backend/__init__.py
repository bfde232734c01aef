"""The torch.distributed backend "slackline".

    torch call ─ _group: Reductions, Moves, PointToPoint ─ _posting ─ nic.Group
                   │            │                            │
                 _codes       _stage (in place or copied)  _work, _transfers (what comes back)
                                └ _cuda (through pinned host memory, in order)

    _identity   what torch asks a group about itself
    _profile    operations in torch's profiles
    _context    one engine for all groups of the process
    _life       a clean place in the store, where earlier lives of the ranks left theirs
    _served     groups under another backend's name, beside other devices' backends
    _memory     tensors in registered memory; from a torch group to the nic's
    _shrink     the default group without the ranks that were lost
    _membership who is still there: the survivors agree through the store
    _failures   what torch has made of an error
    _elastic    state that outlives a rank: whole steps, shared and saved (_step_files)

`register()` makes the name known; torch does it by itself through the package's entry point.
"""

from slackline._registration import register
from slackline.backend._context import Context, create
from slackline.backend._cuda import CudaLane
from slackline.backend._elastic import ElasticState
from slackline.backend._failures import failure_of
from slackline.backend._group import SlacklineGroup
from slackline.backend._memory import counters, empty, group_of, slackline_group, zeros
from slackline.backend._served import create_served
from slackline.backend._shrink import Shrunk, shrink
from slackline.backend._torch import new_event, new_stream

__all__ = [
    "Context",
    "CudaLane",
    "ElasticState",
    "Shrunk",
    "SlacklineGroup",
    "counters",
    "create",
    "create_served",
    "empty",
    "failure_of",
    "group_of",
    "new_event",
    "new_stream",
    "register",
    "shrink",
    "slackline_group",
    "zeros",
]

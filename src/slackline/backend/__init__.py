"""The torch.distributed backend "slackline".

    torch call ─ _group: Reductions, Moves, PointToPoint ─ _posting ─ nic.Group
                   │            │                            │
                 _codes       _arguments                  _work (results)
                                                            └ _staging: slackline.staging (copies)

    _identity   names, devices and abilities that torch asks a group for
    _profile    events of operations in torch's profiles
    _context    one engine for all groups of the process
    _life       a fresh key prefix in the store, where restarted ranks find no old values
    _served     groups under the name of another backend, beside other devices' backends
    _memory     tensors in registered memory; the nic's group under a torch group
    _shrink     replacement of the default group after the loss of ranks
    _membership agreement of the survivors, through the store, on the members of a new group
    _failures   recovery of slackline's errors from errors of torch
    _elastic    training state that survives the loss of a rank, saved in files (_step_files)

`register()` registers the backend's name; torch calls it through the package's entry point.
"""

from slackline._registration import register
from slackline.backend._context import Context, create
from slackline.backend._elastic import ElasticState
from slackline.backend._failures import failure_of
from slackline.backend._group import SlacklineGroup
from slackline.backend._memory import counters, empty, group_of, slackline_group, zeros
from slackline.backend._served import create_served
from slackline.backend._shrink import Shrunk, shrink

__all__ = [
    "Context",
    "ElasticState",
    "Shrunk",
    "SlacklineGroup",
    "counters",
    "create",
    "create_served",
    "empty",
    "failure_of",
    "group_of",
    "register",
    "shrink",
    "slackline_group",
    "zeros",
]

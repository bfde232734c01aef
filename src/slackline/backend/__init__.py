"""The torch.distributed backend "slackline".

    torch call ─ _group ─ operations/ ─ nic.Group

    _identity       names, devices and abilities that torch asks a group for
    _offspring      groups that a group makes: splits and merged groups
    _context        one engine for all groups of the process
    _plain_steps    the steps of a script that uses torch's own wrappers
    _store_prefix   a fresh key prefix in the store, where restarted ranks find no old values;
                    the members of a group after losses of ranks, on which slackline.elastic decides
    _store_watch    the connections of the store whose data do not arrive, while a group opens
    _served         groups under another backend's name, or beside other devices' backends
    _memory         tensors in registered memory; the nic's group under a torch group
    _replacement    replacement of torch's default group by a group of the present members
    flight/         the latest operations, for torch's analyser of hangs
    _flight_dump    the dump of these operations that a program asks for
    _debug          pages in torch's debug server: _debug_pages at rank 0, _debug_answers on ranks
    _failures       recovery of slackline's errors from errors of torch
    _torch          the adapter to torch: untyped interfaces, Works that live as long as torch's C++
                    code refers to them, time limits

`slackline.register()` registers the backend's name; torch calls it through the package's entry
point.
"""

from typing import TYPE_CHECKING

from slackline._lazy import lazily

if TYPE_CHECKING:
    from slackline.backend._context import Context, create, links, open_group
    from slackline.backend._debug import debug_handlers
    from slackline.backend._failures import failure_of
    from slackline.backend._flight_dump import dump_flight_recorder
    from slackline.backend._group import SlacklineGroup
    from slackline.backend._memory import counters, empty, group_of, slackline_group, zeros
    from slackline.backend._plain_steps import plain_steps
    from slackline.backend._replacement import replace_default_group
    from slackline.backend._served import create_beside, create_served
    from slackline.backend._store_prefix import KeyValueStore, Membership
else:
    __getattr__ = lazily(
        __name__,
        {
            "_context": "Context create links open_group",
            "_debug": "debug_handlers",
            "_failures": "failure_of",
            "_flight_dump": "dump_flight_recorder",
            "_group": "SlacklineGroup",
            "_memory": "counters empty group_of slackline_group zeros",
            "_plain_steps": "plain_steps",
            "_replacement": "replace_default_group",
            "_served": "create_beside create_served",
            "_store_prefix": "KeyValueStore Membership",
        },
    )

__all__ = [
    "Context",
    "KeyValueStore",
    "Membership",
    "SlacklineGroup",
    "counters",
    "create",
    "create_beside",
    "create_served",
    "debug_handlers",
    "dump_flight_recorder",
    "empty",
    "failure_of",
    "group_of",
    "links",
    "open_group",
    "plain_steps",
    "replace_default_group",
    "slackline_group",
    "zeros",
]

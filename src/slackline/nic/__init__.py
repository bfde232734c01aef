"""The NIC engine, which moves and reduces one rank's bytes, and its Python interface.

A rank opens one NativeNic, and on it a Group for each set of ranks that it communicates with.

connect/       connections to other engines: rendezvous, handshake, listener, TLS, rails
collectives/   operations of a group: arguments, plans, posting, completion
offload/       devices and nodes that add in place of the engine
host           addresses and NUMA nodes of this host
"""

from slackline.nic._group import NativeGroup
from slackline.nic._interface import (
    Completion,
    CompletionQueue,
    Group,
    Introduction,
    Nic,
    Posts,
    Prepared,
    Store,
    TimedTransfer,
    Transfer,
)
from slackline.nic._limits import clean_up, limits_named
from slackline.nic._native_nic import NativeNic
from slackline.nic._operation import (
    CALLBACK_TAGS,
    PLACES,
    Kind,
    Operation,
    TagAllocator,
    callback_tag,
    in_callback,
    nested_callback_tag,
)
from slackline.nic._options import NicOptions

__all__ = [
    "CALLBACK_TAGS",
    "PLACES",
    "Completion",
    "CompletionQueue",
    "Group",
    "Introduction",
    "Kind",
    "NativeGroup",
    "NativeNic",
    "Nic",
    "NicOptions",
    "Operation",
    "Posts",
    "Prepared",
    "Store",
    "TagAllocator",
    "TimedTransfer",
    "Transfer",
    "callback_tag",
    "clean_up",
    "in_callback",
    "limits_named",
    "nested_callback_tag",
]

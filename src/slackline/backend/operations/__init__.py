"""The operations that torch calls on a process group, by family, and their results.

_reductions, _data_movement ─ _posting ─ nic.Group
            │                    │
        _arguments             _work (results)
                                 └ _staging: slackline.backend.staging (copies)

_sparse         sums of sparse tensors
_callbacks      the order in which callbacks of Futures start, and the identities of operations that
                callbacks post
"""

from typing import TYPE_CHECKING

from slackline.backend.operations._callbacks import Order
from slackline.backend.operations._data_movement import DataMovement, PointToPoint
from slackline.backend.operations._posting import Call, DeviceOf, in_dispatcher
from slackline.backend.operations._reductions import Reductions
from slackline.backend.operations._work import CoalescedWork, TransferWork

if TYPE_CHECKING:
    # Groups without tensors on an accelerator do not load its module.
    from slackline.backend.operations._staging import GroupStaging as GroupStaging

__all__ = [
    "Call",
    "CoalescedWork",
    "DataMovement",
    "DeviceOf",
    "Order",
    "PointToPoint",
    "Reductions",
    "TransferWork",
    "in_dispatcher",
]

"""The operations that torch calls on a process group, by family, and their results.

_reductions, _data_movement, _point_to_point ─ _posting ─ nic.Group
          │            │                          │
        _codes     _arguments                   _work (results)
                                                  └ _staging: slackline.staging (copies)

_sparse         sums of sparse tensors
_callbacks      the order in which callbacks of Futures start
_places         the identities of operations that callbacks post
_dispatching    what torch's dispatcher has of the calling thread's operations
"""

from slackline.backend.operations._data_movement import DataMovement
from slackline.backend.operations._dispatching import Call, current
from slackline.backend.operations._point_to_point import PointToPoint
from slackline.backend.operations._posting import DeviceOf
from slackline.backend.operations._reductions import Reductions
from slackline.backend.operations._work import CoalescedWork, TransferWork

__all__ = [
    "Call",
    "CoalescedWork",
    "DataMovement",
    "DeviceOf",
    "PointToPoint",
    "Reductions",
    "TransferWork",
    "current",
]

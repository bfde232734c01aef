"""The host's side of a ring NIC.

_operation      an operation, and the position of a NIC in its ring
_interface      a ring device: operations and frames in, frames and completions out
_frames         the frames that a NIC accepts, and their order
_twin           the NIC's model in Python
_driver         the host's end of the NIC's queues
_circuit        the simulated NIC
_checked        a device, with a second device that repeats a sample of its operations
_opening        the choice of a device
"""

from slackline.circuit.device._checked import CheckedRing, Checks
from slackline.circuit.device._circuit import RingCircuit
from slackline.circuit.device._driver import Completed, QueueDriver
from slackline.circuit.device._frames import RING_STREAMS
from slackline.circuit.device._interface import RingDevice
from slackline.circuit.device._opening import open_ring_device
from slackline.circuit.device._operation import RingOperation, RingPlace, rotated
from slackline.circuit.device._twin import RingTwin

__all__ = [
    "RING_STREAMS",
    "CheckedRing",
    "Checks",
    "Completed",
    "QueueDriver",
    "RingCircuit",
    "RingDevice",
    "RingOperation",
    "RingPlace",
    "RingTwin",
    "open_ring_device",
    "rotated",
]

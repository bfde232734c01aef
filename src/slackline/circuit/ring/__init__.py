"""The ring NIC: a circuit that adds its host's data to sums that travel round a ring.

_place, _layouts    records that the NIC's parts exchange
_receiver           received frames, kept in slots by sequence number
_scheduler          operations, grants, the choice of the next frame
  _issuer             a job for the datapath from each frame
_datapath           the adders
_transmitter        frames to send, kept until they are acknowledged
  _window             the send window of one virtual channel
_flow_control       ACKs and GRANTs, in both directions
_dma                reads and writes of the host's memory
_nic                the NIC, put together from these
queue               its queues in the host's memory
_queued             the whole ring NIC: NIC and queues
"""

from slackline.circuit.ring._nic import RingNic
from slackline.circuit.ring._queued import QueuedRingNic

__all__ = [
    "QueuedRingNic",
    "RingNic",
]

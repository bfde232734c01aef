"""A ring NIC's queues in its host's memory.

_descriptors    the descriptor queue: entries fetched and checked
_completions    the completion queue: entries written behind the sums that they report
_sharing        one DMA interface shared by two circuits
_queues         both queues, put together from these
"""

from slackline.circuit.ring.queue._queues import RingQueues

__all__ = [
    "RingQueues",
]

"""Host memory between an operation's tensors and the NIC engine.

_buffers        the host memory of one operation: the tensors' memory, or copies of tensors;
                _device_buffers of tensors on an accelerator; the kinds of tensors
_device         the interface of an accelerator: copies, events, gates (points where it waits)
_cuda           the implementation on CUDA, with gates in _stream_memory
_landing        the copies of results to the device, launched before or after the data arrive
_pieces         long tensors, in pieces through a ring of blocks
_posting_queue  a thread that posts operations whose data is first copied to the host (_worker)
_transfers      transfers made of other transfers
"""

from typing import TYPE_CHECKING

from slackline._lazy import lazily

if TYPE_CHECKING:
    from slackline.backend.staging._buffers import (
        PIECE_BYTES,
        Buffers,
        HostBuffers,
        NeedsDispatcher,
        check_on,
        device_of,
        flat,
        is_plain,
        needs_dispatcher,
    )
    from slackline.backend.staging._device import Copies, Departures, Device, Event, Gate
    from slackline.backend.staging._device_buffers import DeviceBuffers
    from slackline.backend.staging._landing import Landing, StagedTransfer
    from slackline.backend.staging._pieces import (
        BlockRing,
        Piece,
        gathered_pieces,
        pieces_of,
        scattered_pieces,
    )
    from slackline.backend.staging._posting_queue import PostingQueue
    from slackline.backend.staging._torch import new_event
    from slackline.backend.staging._transfers import AllOf, Callback, Continuation, DeferredTransfer
    from slackline.backend.staging._worker import Worker
else:
    __getattr__ = lazily(
        __name__,
        {
            "_buffers": (
                "PIECE_BYTES Buffers HostBuffers NeedsDispatcher check_on device_of flat is_plain "
                "needs_dispatcher"
            ),
            "_device": "Copies Departures Device Event Gate",
            "_device_buffers": "DeviceBuffers",
            "_landing": "Landing StagedTransfer",
            "_pieces": "BlockRing Piece gathered_pieces pieces_of scattered_pieces",
            "_posting_queue": "PostingQueue",
            "_torch": "new_event",
            "_transfers": "AllOf Callback Continuation DeferredTransfer",
            "_worker": "Worker",
        },
    )

__all__ = [
    "PIECE_BYTES",
    "AllOf",
    "BlockRing",
    "Buffers",
    "Callback",
    "Continuation",
    "Copies",
    "DeferredTransfer",
    "Departures",
    "Device",
    "DeviceBuffers",
    "Event",
    "Gate",
    "HostBuffers",
    "Landing",
    "NeedsDispatcher",
    "Piece",
    "PostingQueue",
    "StagedTransfer",
    "Worker",
    "check_on",
    "device_of",
    "flat",
    "gathered_pieces",
    "is_plain",
    "needs_dispatcher",
    "new_event",
    "pieces_of",
    "scattered_pieces",
]

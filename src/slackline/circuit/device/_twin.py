"""The ring NIC's twin: a Python model with the same frames and sums, without timing."""

import ctypes
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slackline.circuit import twins
from slackline.circuit.device._frames import FINAL, PARTIAL, Outbox, RingPost, judge
from slackline.circuit.device._operation import RingOperation, RingPlace
from slackline.circuit.options import ELEMENTS, Element, RingOptions
from slackline.wire import (
    FIRST_SEQUENCE,
    HEADER_BYTES,
    Collective,
    FrameFlag,
    FrameKind,
    Header,
    ReduceOp,
    decode,
    encode,
    next_sequence,
)

__all__ = ["RingTwin"]


@dataclass
class _Open:
    operation: RingOperation
    given: int = 0
    """Bytes of the source that have been sent or added."""
    stored: int = 0
    """Bytes of the sum that are in the target."""

    @property
    def element(self) -> Element:
        return ELEMENTS[self.operation.dtype]


class RingTwin(Outbox):
    """A RingDevice that models RingNic without cycles: the same frames, sums and events.

    Frames of one operation leave in the same order as from the circuit. Frames of different
    operations leave in the order in which they are made; the circuit's order depends on timing.
    """

    def __init__(self, options: RingOptions, place: RingPlace) -> None:
        super().__init__()
        self.options = options
        self._place = place
        self._host = RingPost(options, place.ranks)
        self._open: dict[tuple[int, int], _Open] = {}
        self._sequences = {FINAL: FIRST_SEQUENCE, PARTIAL: FIRST_SEQUENCE}
        self._counters: Counter[str] = Counter(
            accepted=0, malformed=0, foreign=0, unexpected=0, frames=0, completed=0
        )

    def post(self, operation: RingOperation) -> None:
        """Open an operation: see RingDevice. The rank that starts the operation sends at once."""
        self._host.post(operation)
        posted = self._open[operation.key] = _Open(operation)
        while self._place.first(operation.start) and posted.given < operation.total:
            self._send(posted, PARTIAL, posted.given, self._own(posted).tobytes())
            posted.given += operation.size_at(posted.given)

    def receive(self, frame: bytes) -> None:
        """Take a frame, add or store its data, and make the resulting frames: see RingDevice."""
        event, header = judge(frame, self.options, self._place)
        self._counters[event] += 1
        if header is not None:
            for each in self._host.in_order(frame, header):
                if not self._take(each, decode(each)):
                    self._counters["unexpected"] += 1

    def advance(self) -> None:
        """Do nothing, because `receive` has already done all work for a frame."""

    def counters(self) -> Mapping[str, int]:
        """Return the counters: see RingDevice."""
        return dict(self._counters)

    def close(self) -> None:
        """Do nothing, because a Python model has nothing to free."""

    def _take(self, frame: bytes, header: Header) -> bool:
        """Handle a frame if it is the next of its operation; return whether it was the next."""
        place, posted = self._place, self._open.get((header.tag, header.chunk))
        partial = header.flags == PARTIAL
        if posted is None:
            return False
        operation = posted.operation
        start = operation.start
        if place.first(start) if partial else place.last(start):
            return False
        if (header.dtype, header.total) != (operation.dtype, operation.total):
            return False
        due = posted.given if partial else posted.stored
        length = operation.wire_bytes(due, header.flags)
        if (header.offset, header.length) != (due, length):
            return False
        # A final sum contains this rank's contribution, which must have been added before.
        if not partial and due + length > posted.given:
            return False
        payload = frame[HEADER_BYTES : HEADER_BYTES + length]
        if partial:
            self._add(posted, payload)
        else:
            if place.passes_on(start):
                self._send(posted, FINAL, due, payload)
            self._store(posted, payload)
        return True

    def _add(self, posted: _Open, payload: bytes) -> None:
        """Add this rank's contribution to the predecessor's sum, and send the result on."""
        offset, element = posted.given, posted.element
        passing = np.frombuffer(payload, np.uint32)
        total = twins.add(passing, self._own(posted), element.way)
        posted.given += posted.operation.size_at(offset)
        if not self._place.last(posted.operation.start):
            self._send(posted, PARTIAL, offset, total.tobytes())
            return
        final = twins.narrow(total, element) if element.half else total
        self._send(posted, FINAL, offset, final.tobytes())
        self._store(posted, final.tobytes())

    def _own(self, posted: _Open) -> twins.Words:
        """Return this rank's contribution to the next frame as 32-bit words; widen 16-bit types."""
        operation, offset = posted.operation, posted.given
        part = _memory(operation.source + offset, operation.size_at(offset))
        if posted.element.half:
            return twins.widen(part.view(np.uint16), posted.element)
        return part.view(np.uint32).copy()

    def _store(self, posted: _Open, payload: bytes) -> None:
        operation = posted.operation
        target = _memory(operation.target + posted.stored, len(payload))
        target[:] = np.frombuffer(payload, np.uint8)
        posted.stored += len(payload)
        if posted.stored == operation.total:
            del self._open[operation.key]
            self._host.close(operation.key)
            self._completed.append(operation.key)
            self._counters["completed"] += 1

    def _send(self, posted: _Open, flags: FrameFlag, offset: int, payload: bytes) -> None:
        place, operation = self._place, posted.operation
        header = Header(
            kind=FrameKind.DATA,
            job=place.job,
            epoch=place.epoch,
            source=place.rank,
            dtype=operation.dtype,
            collective=Collective.ALL_REDUCE,
            reduce_op=ReduceOp.SUM,
            tag=operation.tag,
            sequence=self._sequences[flags],
            offset=offset,
            total=operation.total,
            length=len(payload),
            chunk=operation.chunk,
            flags=flags,
            plan_id=place.plan_id,
        )
        self._sequences[flags] = next_sequence(self._sequences[flags])
        self._out.append(encode(header) + payload)
        self._counters["frames"] += 1


def _memory(address: int, size: int) -> npt.NDArray[np.uint8]:
    """Return `size` bytes of this process's memory at `address` as an array, without a copy."""
    array: Any = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(array, np.uint8)

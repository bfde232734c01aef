"""Rules for the frames of a ring: which frames a NIC accepts, and in which order."""

from dataclasses import dataclass, field

from slackline.circuit.device._operation import RingOperation, RingPlace
from slackline.circuit.options import ELEMENTS, RingOptions, sum_bytes
from slackline.errors import FrameError, UsageError
from slackline.wire import (
    HEADER_BYTES,
    Collective,
    FrameFlag,
    FrameKind,
    Header,
    ReduceOp,
    decode,
)

__all__ = [
    "FINAL",
    "PARTIAL",
    "RING_STREAMS",
    "Outbox",
    "RingPost",
    "judge",
]

FINAL, PARTIAL = FrameFlag(0), FrameFlag.PARTIAL
"""The flags of frames with final sums, and of frames with partial sums."""


RING_STREAMS = {
    "rx": 0,
    "tx_back": 1,
    "tx": 0,
    "rx_back": 1,
}
"""The numbers of a QueuedRingNic's streams in a Simulation; inputs and outputs are numbered
separately."""

_LAST_CHUNK = 65535


def judge(frame: bytes, options: RingOptions, place: RingPlace) -> tuple[str, Header | None]:
    """Return how a NIC's receiver classifies a frame, with the frame's header if it is "accepted".

    A frame is "malformed" if it is damaged, truncated, too long, or of an operation that a NIC does
    not sum. A frame is "foreign" if it belongs to another job, epoch or rank.
    """
    try:
        header = decode(frame)
    except FrameError:
        return "malformed", None
    beats = -(-(len(frame) - HEADER_BYTES) // options.beat_bytes)
    if len(frame) <= HEADER_BYTES or beats != -(-header.length // options.beat_bytes):
        return "malformed", None
    ours = (place.job, place.epoch, place.predecessor)
    if (header.job, header.epoch, header.source) != ours:
        return "foreign", None
    dtype = header.dtype
    right = (
        header.kind is FrameKind.DATA
        and (header.collective, header.reduce_op) == (Collective.ALL_REDUCE, ReduceOp.SUM)
        and dtype in ELEMENTS
        and header.flags in (FINAL, PARTIAL)
        and header.plan_id == place.plan_id
        and 0 < header.length <= options.payload_bytes
        and header.length % sum_bytes(dtype, header.flags) == 0
    )
    return ("accepted", header) if right else ("malformed", None)


@dataclass
class _Open:
    operation: RingOperation
    due: dict[FrameFlag, int] = field(default_factory=lambda: {FINAL: 0, PARTIAL: 0})
    """The next offset of each kind, partial and final."""
    early: dict[tuple[FrameFlag, int], bytes] = field(default_factory=dict)
    """Frames that came ahead of an earlier frame of the operation, by kind and offset."""

    def next(self, flags: FrameFlag) -> tuple[int, int]:
        """Return offset and length of the next frame with partial or with final sums."""
        due = self.due[flags]
        return due, self.operation.wire_bytes(due, flags)


class Outbox:
    """A store of a device's frames and completions until the host asks for them."""

    def __init__(self) -> None:
        self._out: list[bytes] = []
        self._completed: list[tuple[int, int]] = []

    def frames(self) -> list[bytes]:
        """Return the frames for the successor since the last call: see RingDevice."""
        found, self._out = self._out, []
        return found

    def completed(self) -> list[tuple[int, int]]:
        """Return tag and chunk of the operations completed since the last call: see RingDevice."""
        found, self._completed = self._completed, []
        return found


class RingPost:
    """The host's record of open operations, which checks operations and puts frames in order."""

    def __init__(self, options: RingOptions, ranks: int) -> None:
        self._options, self._ranks = options, ranks
        self._open: dict[tuple[int, int], _Open] = {}

    def post(self, operation: RingOperation) -> None:
        """Open an operation; raise UsageError if it is not valid."""
        self._check(operation)
        self._open[operation.key] = _Open(operation)

    def close(self, key: tuple[int, int]) -> None:
        """Close a completed operation; its tag and chunk may be posted again."""
        del self._open[key]

    def in_order(self, frame: bytes, header: Header) -> list[bytes]:
        """Return the frames that are next in order: none, `frame`, or `frame` and later frames.

        The later frames are those that came early. A frame that belongs to no open operation, or
        that has come before, is returned at once.
        """
        posted = self._open.get((header.tag, header.chunk))
        if posted is None:
            return [frame]
        flags = header.flags
        if posted.due[flags] < header.offset < posted.operation.total:
            posted.early[flags, header.offset] = frame
            return []
        found = [frame]
        following = header
        while (following.offset, following.length) == posted.next(flags):
            posted.due[flags] += posted.operation.size_at(following.offset)
            if (flags, posted.due[flags]) not in posted.early:
                break
            found.append(posted.early.pop((flags, posted.due[flags])))
            following = decode(found[-1])
        return found

    def _check(self, operation: RingOperation) -> None:
        options, dtype = self._options, operation.dtype
        if dtype not in ELEMENTS:
            known = ", ".join(each.name for each in ELEMENTS)
            raise UsageError(f"a ring NIC sums {known}, not {dtype.name}")
        if not 0 < operation.total < 1 << 48 or operation.total % dtype.itemsize:
            raise UsageError(
                f"total must be a positive multiple of {dtype.itemsize} bytes below 2^48, "
                f"not {operation.total}"
            )
        longest = options.payload_bytes * dtype.itemsize // sum_bytes(dtype, PARTIAL)
        size = operation.frame_bytes
        if not 0 < size <= longest or size % 64:
            raise UsageError(
                f"frame_bytes must be a positive multiple of 64 up to {longest}, not {size}"
            )
        if not 0 <= operation.chunk <= _LAST_CHUNK:
            raise UsageError(f"chunk must be 0 to {_LAST_CHUNK}, not {operation.chunk}")
        if not 0 <= operation.start < self._ranks:
            raise UsageError(f"start must be 0 to {self._ranks - 1}, not {operation.start}")
        if operation.key in self._open:
            raise UsageError(
                f"chunk {operation.chunk} of an operation with tag 0x{operation.tag:X} "
                "is open already"
            )
        if len(self._open) == options.operations:
            raise UsageError(f"{options.operations} operations are open, the limit of this NIC")

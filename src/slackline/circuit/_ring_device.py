"""The host's interface to a ring NIC: operations are posted, frames go in and come out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from slackline.circuit._options import Beats, check_lanes, check_power
from slackline.errors import UsageError
from slackline.plan.collective import split
from slackline.wire import DType, FrameFlag

__all__ = [
    "RingDevice",
    "RingOperation",
    "RingOptions",
    "RingPlace",
    "open_ring_device",
    "rotated",
    "sum_bytes",
]


def sum_bytes(dtype: DType, flags: FrameFlag) -> int:
    """Return an element's bytes on the wire; partial sums of 16-bit types travel as fp32."""
    return max(4, dtype.itemsize) if flags & FrameFlag.PARTIAL else dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class RingOptions(Beats):
    """Parameters of a ring NIC."""

    lanes: int = 16
    """Words of 32 bits in a beat, and the number of adders."""
    slots: int = 8
    """Frames that each of the two virtual channels (partial and final sums) keeps on its way in,
    and as many on its way out; a power of two from 2 to 64."""
    payload_bytes: int = 8192
    """Bytes of a frame's longest payload; a power of two from 128 on."""
    operations: int = 64
    """Operations that may be open at once; a power of two from 2 to 256."""
    ahead_beats: int = 0
    """Beats of host memory that may be requested or buffered before they are used; at least those
    of the longest frame. 0 stands for those of four such frames."""

    def __post_init__(self) -> None:
        check_lanes(self.lanes)
        check_power("slots", self.slots, 2, 64)
        check_power("payload_bytes", self.payload_bytes, 128, 65536)
        check_power("operations", self.operations, 2, 256)
        if self.ahead_beats != 0 and self.ahead_beats < self.slot_beats:
            raise UsageError(
                f"ahead_beats must be 0 or at least {self.slot_beats}, not {self.ahead_beats}"
            )

    @property
    def read_beats(self) -> int:
        """The value of `ahead_beats`, with its default in place of 0."""
        return self.ahead_beats or 4 * self.slot_beats


@dataclass(frozen=True, kw_only=True)
class RingOperation:
    """A tensor of this host, or a chunk of it, that is to become the sum over all ranks."""

    tag: int
    """The operation's number, the same on all ranks; tag and chunk identify an operation."""
    dtype: DType
    """The element type, one of ELEMENTS."""
    total: int
    """Bytes of the tensor or chunk."""
    frame_bytes: int
    """Bytes of the tensor in every frame but the last, the same on all ranks; a multiple of 64."""
    source: int
    """The address of this rank's contribution."""
    target: int
    """The address that the sum is written to; it may equal `source`."""
    chunk: int = 0
    """The number of this chunk of a tensor, 0 to 65535."""
    start: int = 0
    """The rank whose data start the sum; the rank before it in the ring makes the sum final."""

    @property
    def key(self) -> tuple[int, int]:
        """The tag and the chunk, which identify the operation."""
        return self.tag, self.chunk

    def size_at(self, offset: int) -> int:
        """Return the bytes of the tensor in the frame at `offset`."""
        return min(self.frame_bytes, self.total - offset)

    def wire_bytes(self, offset: int, flags: FrameFlag) -> int:
        """Return the payload bytes of the frame at `offset`, of the kind that `flags` tells."""
        return self.size_at(offset) * sum_bytes(self.dtype, flags) // self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class RingPlace:
    """A NIC's position in a ring, and the identity of that ring."""

    rank: int
    ranks: int
    job: int
    epoch: int
    plan_id: int
    """The id of the plan, which frames carry."""

    def __post_init__(self) -> None:
        if not 2 <= self.ranks <= 65535:
            raise UsageError(f"ranks must be 2 to 65535, not {self.ranks}")
        if not 0 <= self.rank < self.ranks:
            raise UsageError(f"rank must be 0 to {self.ranks - 1}, not {self.rank}")

    @property
    def predecessor(self) -> int:
        """The rank whose frames come in."""
        return (self.rank - 1) % self.ranks

    def hops(self, start: int) -> int:
        """Return how many ranks come before this one in an operation that starts at `start`."""
        return (self.rank - start) % self.ranks

    def first(self, start: int) -> bool:
        """Return whether this rank starts the operation: its data are the first partial sum."""
        return self.rank == start

    def last(self, start: int) -> bool:
        """Return whether this rank's sums are final."""
        return self.hops(start) == self.ranks - 1

    def passes_on(self, start: int) -> bool:
        """Return whether this rank forwards final sums; the last receiver of them does not."""
        return self.hops(start) < self.ranks - 2


def rotated(operation: RingOperation, ranks: int) -> tuple[RingOperation, ...]:
    """Return the operations of a rotating ring: a tensor's chunks in the plan `ring`.

    Each chunk starts at a rank of its own: chunk c starts at rank c + 1 and is final at rank c.
    Empty chunks are left out. Raises UsageError if `operation` is a chunk already, or starts at a
    rank other than 0.
    """
    if operation.chunk or operation.start:
        raise UsageError(
            f"only a whole tensor is rotated, not chunk {operation.chunk} "
            f"that opens at rank {operation.start}"
        )
    size = operation.dtype.itemsize
    return tuple(
        replace(
            operation,
            chunk=chunk,
            start=(chunk + 1) % ranks,
            total=count * size,
            source=operation.source + first * size,
            target=operation.target + first * size,
        )
        for chunk, (first, count) in enumerate(split(operation.total // size, ranks, size))
        if count
    )


class RingDevice(Protocol):
    """A NIC in a ring, used by one thread at a time.

    Each operation goes round the ring twice: from its `start` on to be summed, and once more to
    spread the sum. From rank 0 on that is the plan reduce-broadcast; the operations of `rotated`
    are the plan `ring`.

    The memory of a posted operation belongs to the device until the operation is completed.
    """

    options: RingOptions

    def post(self, operation: RingOperation) -> None:
        """Open an operation. Raises UsageError when it is not valid, or too many are open."""

    def receive(self, frame: bytes) -> None:
        """Take a whole DATA frame of the predecessor; its sequence number does not matter.

        Frames of one operation may come in any order. A frame that is malformed, or of no open
        operation, is counted and dropped.
        """

    def advance(self) -> None:
        """Run until nothing is left to do without new input."""

    def frames(self) -> list[bytes]:
        """Return the DATA frames for the successor since the last call, numbered and in order."""

    def completed(self) -> list[tuple[int, int]]:
        """Return tag and chunk of the operations that were completed since the last call.

        An operation is completed when its sum is whole in `target` and its frames have all left.
        """

    def counters(self) -> Mapping[str, int]:
        """Return counts of the events since the device was opened, by name."""

    def close(self) -> None:
        """Free the device; calling it again does nothing."""


def open_ring_device(
    kind: str,
    options: RingOptions,
    *,
    rank: int,
    ranks: int,
    job: int,
    epoch: int,
    plan_id: int,
) -> RingDevice:
    """Open a ring device of a kind: "twin" is a Python model, "circuit" a simulation by Verilator.

    A circuit is compiled at its first use. Raises UsageError for another kind, and when the tools
    for a simulation are missing.
    """
    place = RingPlace(rank=rank, ranks=ranks, job=job, epoch=epoch, plan_id=plan_id)
    if kind == "twin":
        from slackline.circuit._ring_twin import RingTwin

        return RingTwin(options, place)
    if kind == "circuit":
        from slackline.circuit import RingCircuit

        return RingCircuit(options, place)
    raise UsageError(f"a ring device is twin or circuit, not {kind!r}")

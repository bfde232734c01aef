"""A ring NIC as the host sees it: operations posted, frames in, frames out."""

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
    """Bytes of an element on the wire: partials of half types travel as fp32."""
    return max(4, dtype.itemsize) if flags & FrameFlag.PARTIAL else dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class RingOptions(Beats):
    """How a ring NIC is built."""

    lanes: int = 16
    """Words of 32 bits in a beat, and adders."""
    slots: int = 8
    """Frames that each of the two virtual channels keeps on its way in, and on its way out; a power
    of two from 2 to 64."""
    payload_bytes: int = 8192
    """The longest payload of a frame; a power of two from 128 on."""
    operations: int = 64
    """Operations that may be posted at once; a power of two from 2 to 256."""
    ahead_beats: int = 0
    """Beats of the host's memory that may be on their way or wait for their turn; at least those of
    the longest frame. 0: of four such frames."""

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
        """`ahead_beats`, or what it is if it is 0."""
        return self.ahead_beats or 4 * self.slot_beats


@dataclass(frozen=True, kw_only=True)
class RingOperation:
    """A tensor of this host, or a chunk of it, that is to become the sum over all ranks."""

    tag: int
    """What all ranks call it, together with `chunk`."""
    dtype: DType
    """One of ELEMENTS."""
    total: int
    """Its bytes."""
    frame_bytes: int
    """Bytes of it in every frame but the last, the same on all ranks; a multiple of 64."""
    source: int
    """The address of what this rank adds."""
    target: int
    """The address of where the sum goes; may be `source`."""
    chunk: int = 0
    """Which chunk of a tensor this is; 0 to 65535."""
    start: int = 0
    """The rank whose data open it; the rank before that one makes the sum final."""

    @property
    def key(self) -> tuple[int, int]:
        """What it is known by: tag and chunk."""
        return self.tag, self.chunk

    def size_at(self, offset: int) -> int:
        """Bytes of the tensor in the frame at that offset."""
        return min(self.frame_bytes, self.total - offset)

    def wire_bytes(self, offset: int, flags: FrameFlag) -> int:
        """Bytes of payload of that frame."""
        return self.size_at(offset) * sum_bytes(self.dtype, flags) // self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class RingPlace:
    """Where in which ring a NIC is."""

    rank: int
    ranks: int
    job: int
    epoch: int
    plan_id: int
    """What frames carry as the plan's id."""

    def __post_init__(self) -> None:
        if not 2 <= self.ranks <= 65535:
            raise UsageError(f"ranks must be 2 to 65535, not {self.ranks}")
        if not 0 <= self.rank < self.ranks:
            raise UsageError(f"rank must be 0 to {self.ranks - 1}, not {self.rank}")

    @property
    def predecessor(self) -> int:
        """Whose frames come in."""
        return (self.rank - 1) % self.ranks

    def hops(self, start: int) -> int:
        """How many ranks come before this one in an operation that `start` opens."""
        return (self.rank - start) % self.ranks

    def first(self, start: int) -> bool:
        """It adds nothing: its own data open the operation."""
        return self.rank == start

    def last(self, start: int) -> bool:
        """Its sums are final."""
        return self.hops(start) == self.ranks - 1

    def passes_on(self, start: int) -> bool:
        """It sends on the final values that come in; the last one that gets them does not."""
        return self.hops(start) < self.ranks - 2


def rotated(operation: RingOperation, ranks: int) -> tuple[RingOperation, ...]:
    """The operations of a rotating ring: the chunks of the plan `ring`, each with its start.

    Chunk c opens at rank c + 1 and is final at rank c. Empty chunks are left out.
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
    """A NIC in a ring; one thread at a time.

    Each operation goes once round to be added to, from its `start` on, and once more to be spread:
    the plan reduce-broadcast from rank 0 on, or `ring` for what `rotated` makes of a tensor.

    Memory that is posted stays the device's until the operation is completed.
    """

    options: RingOptions

    def post(self, operation: RingOperation) -> None:
        """Opens an operation; raises UsageError when it cannot be one, or too many are open."""

    def receive(self, frame: bytes) -> None:
        """Takes a whole DATA frame of the predecessor; its sequence number does not matter.

        Frames of one operation may come in any order. One that is malformed, or of no open
        operation, is counted and dropped.
        """

    def advance(self) -> None:
        """Runs until nothing is left to do without new input."""

    def frames(self) -> list[bytes]:
        """DATA frames for the successor since the last call, in order; numbered by the device."""

    def completed(self) -> list[tuple[int, int]]:
        """Keys whose sum is whole in `target` and whose frames have all left, since last time."""

    def counters(self) -> Mapping[str, int]:
        """What has happened since the device was opened, by name."""

    def close(self) -> None:
        """Frees the device; calling it again does nothing."""


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
    """A device: "twin" in Python, "circuit" simulated by Verilator, which compiles at first use.

    Raises UsageError for another kind, and when the tools for a simulation are missing.
    """
    place = RingPlace(rank=rank, ranks=ranks, job=job, epoch=epoch, plan_id=plan_id)
    if kind == "twin":
        from slackline.circuit._ring_twin import RingTwin

        return RingTwin(options, place)
    if kind == "circuit":
        from slackline.circuit import RingCircuit

        return RingCircuit(options, place)
    raise UsageError(f"a ring device is twin or circuit, not {kind!r}")

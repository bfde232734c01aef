"""An operation of a ring NIC, and the position of the NIC in its ring."""

from dataclasses import dataclass, replace

from slackline.circuit.options import sum_bytes
from slackline.errors import UsageError
from slackline.plan.collective import split
from slackline.wire import DType, FrameFlag

__all__ = ["RingOperation", "RingPlace", "rotated"]


@dataclass(frozen=True, kw_only=True)
class RingOperation:
    """An all-reduce that sums the ranks' contributions to a tensor, or to a chunk of a tensor."""

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
    """The rank that sends the first partial sum; the rank before it in the ring adds last."""

    @property
    def key(self) -> tuple[int, int]:
        """The tag and the chunk, which identify the operation."""
        return self.tag, self.chunk

    def size_at(self, offset: int) -> int:
        """Return the bytes of the tensor in the frame at `offset`."""
        return min(self.frame_bytes, self.total - offset)

    def wire_bytes(self, offset: int, flags: FrameFlag) -> int:
        """Return the payload bytes of the frame at `offset`, partial or final by its `flags`."""
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
        """Return the number of ranks before this one in an operation that starts at `start`."""
        return (self.rank - start) % self.ranks

    def first(self, start: int) -> bool:
        """Return whether this rank starts the operation: its data are the first partial sum."""
        return self.rank == start

    def last(self, start: int) -> bool:
        """Return whether this rank's sums are final."""
        return self.hops(start) == self.ranks - 1

    def passes_on(self, start: int) -> bool:
        """Return whether this rank forwards final sums; the last rank to receive a sum does not."""
        return self.hops(start) < self.ranks - 2


def rotated(operation: RingOperation, ranks: int) -> tuple[RingOperation, ...]:
    """Return one operation for each chunk of a tensor, as the plan `ring` (rotating ring) does it.

    Each chunk starts at a different rank: chunk c starts at rank c + 1 and is final at rank c.
    Empty chunks are left out. Raises UsageError if `operation` is a chunk already, or starts at a
    rank other than 0.
    """
    if operation.chunk or operation.start:
        raise UsageError(
            "only a whole tensor that starts at rank 0 can be cut into chunks, "
            f"not chunk {operation.chunk} that starts at rank {operation.start}"
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

"""The codes in a frame header: element types, reductions, collectives, frame kinds and flags."""

from enum import IntEnum, IntFlag

__all__ = ["Collective", "DType", "FrameFlag", "FrameKind", "ReduceOp"]


class DType(IntEnum):
    """The type of one element; a frame without elements carries the code 0."""

    FLOAT32 = 1
    FLOAT64 = 2
    FLOAT16 = 3
    BFLOAT16 = 4
    INT8 = 5
    INT16 = 6
    INT32 = 7
    INT64 = 8
    UINT8 = 9
    UINT16 = 10
    UINT32 = 11
    UINT64 = 12
    BOOL = 13

    @property
    def itemsize(self) -> int:
        """The size of one element in bytes."""
        return _ITEM_SIZES[self]


_ITEM_SIZES = {
    DType.FLOAT32: 4,
    DType.FLOAT64: 8,
    DType.FLOAT16: 2,
    DType.BFLOAT16: 2,
    DType.INT8: 1,
    DType.INT16: 2,
    DType.INT32: 4,
    DType.INT64: 8,
    DType.UINT8: 1,
    DType.UINT16: 2,
    DType.UINT32: 4,
    DType.UINT64: 8,
    DType.BOOL: 1,
}


class ReduceOp(IntEnum):
    """The operation that combines elements of ranks; AVG is SUM divided by the number of ranks."""

    NONE = 0
    SUM = 1
    AVG = 2
    MIN = 3
    MAX = 4
    PROD = 5
    BAND = 6
    BOR = 7
    BXOR = 8


class Collective(IntEnum):
    """The communication operation that a frame belongs to."""

    NONE = 0
    ALL_REDUCE = 1
    REDUCE_SCATTER = 2
    ALL_GATHER = 3
    BROADCAST = 4
    REDUCE = 5
    GATHER = 6
    SCATTER = 7
    ALL_TO_ALL = 8
    BARRIER = 9
    POINT_TO_POINT = 10


class FrameKind(IntEnum):
    """The purpose of a frame."""

    DATA = 1
    """Carries a segment of a chunk."""
    GRANT = 2
    """Permits the peer to send more of one operation: `offset` is its new limit in bytes."""
    CREDIT = 3
    """Reports how many unrequested (eager) bytes the receiver has consumed since the start.

    `offset` has the number of bytes, which includes the header of each frame.
    """
    ACK = 4
    """Acknowledges frames when no data frame can carry the acknowledgement."""
    ABORT = 5
    """Ends one operation, or with the largest tag the group; the payload is the reason in UTF-8.

    `offset` is the code of the error. In the frame that ends a group, `total` is 1 more than the
    rank that has caused the failure, and `chunk` is 2 if that rank has aborted the group, else 0.
    """
    BYE = 6
    """Announces that the sender leaves in good order: all its operations have been flushed."""
    HELLO = 7
    """Opens a rail, one network path of a link."""
    RELEASE = 8
    """Releases memory of the peer that a REFERENCE frame named."""
    PROBE = 9
    """Asks the peer's engine for an answer on the same rail, whose index is in `chunk`.

    `offset` has the time at which the probe was sent. In the answer, `total` has the time at which
    the probe was received, and `tag` the time at which the answer was sent.
    """


class FrameFlag(IntFlag):
    """The low eight bits of the flags.

    Bits 8-11 are the plan's id. Bits 12-15 have the number of the present division of a tensor
    among the ranks, which follows the rates of the ranks' ports.
    """

    PARTIAL = 1
    """The payload is a partial result in the accumulation type."""
    REFERENCE = 2
    """The payload names memory of the sender instead of carrying its bytes."""
    WRITTEN = 4
    """The payload is already stored in the receiver's memory."""
    EAGER = 8
    """The frame was sent before the receiver granted it.

    Its bytes count against the link's limit of unexpected bytes.
    """
    TO_SENDER = 16
    """The frame concerns the peer's send of a point-to-point message, not the peer's receive."""
    ANSWER = 32
    """The frame is the answer to a PROBE."""

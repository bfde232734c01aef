"""Chain algorithms for n ranks: each rank forwards one chunk to the next, segment by segment.

A rank forwards the first segments of the chunk while later segments are still arriving.
Reduce-broadcast consists of two chains. The first chain 0 -> 1 -> ... -> n - 1 adds every element
in rank order. The second chain n - 1 -> 0 -> 1 -> ... -> n - 2 spreads the result. Over three
ranks:

    rank 0   SEND_1C0               COPY_2C0 SEND_1C0
    rank 1   ADD_0C0  SEND_2C0      COPY_0C0
    rank 2   ADD_1C0!               SEND_0C0

Reduce-broadcast takes 2 (n - 1) hops. For a buffer of S bytes each link carries 2 S, and the links
of rank n - 1 carry S. A rotating ring moves less, 2 (n - 1) / n S, but the result of a
reduce-broadcast is bit-identical to a sum in rank order, whatever the size of the buffer and the
places where the buffer is cut.
"""

from collections.abc import Iterator

from slackline.plan.collective._plan import Instruction, Kind

__all__ = ["all_reduce_chain", "broadcast_chain", "reduce_chain"]


def broadcast_chain(rank: int, ranks: int, root: int) -> Iterator[Instruction]:
    """Yield a rank's instructions of a broadcast along root -> root + 1 -> ... -> root - 1.

    The broadcast takes n - 1 hops for n ranks, and each link carries the whole buffer once.
    """
    if rank != root:
        yield Instruction(Kind.COPY, (rank - 1) % ranks, 0)
    if (rank + 1) % ranks != root:
        yield Instruction(Kind.SEND, (rank + 1) % ranks, 0)


def reduce_chain(rank: int, ranks: int, root: int) -> Iterator[Instruction]:
    """Yield a rank's instructions of a reduce in rank order along 0 -> 1 -> ... -> n - 1.

    Where the root is not rank n - 1, one more hop takes the result to the root.
    """
    tail = ranks - 1
    if rank > 0:
        yield Instruction(Kind.ADD, rank - 1, 0, last=rank == tail)
    if rank < tail:
        yield Instruction(Kind.SEND, rank + 1, 0)
    if rank == tail and rank != root:
        yield Instruction(Kind.SEND, root, 0)
    if rank == root and rank != tail:
        yield Instruction(Kind.COPY, tail, 0)


def all_reduce_chain(rank: int, ranks: int, root: int) -> Iterator[Instruction]:
    """Yield a rank's instructions of a reduce to rank n - 1 and a broadcast from that rank."""
    yield from reduce_chain(rank, ranks, ranks - 1)
    yield from broadcast_chain(rank, ranks, ranks - 1)

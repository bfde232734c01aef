"""Chains: every rank passes one chunk on, segment by segment, while later ones still arrive.

Reduce-broadcast is two chains: the sum is gathered 0 -> 1 -> ... -> n - 1, so every element is
added in rank order, and the result goes n - 1 -> 0 -> 1 -> ... -> n - 2. Over three ranks:

    rank 0   SEND_1C0               COPY_2C0 SEND_1C0
    rank 1   ADD_0C0  SEND_2C0      COPY_0C0
    rank 2   ADD_1C0!               SEND_0C0

2 (n - 1) hops, and 2 S bytes over each link, S over those of rank n - 1: more than a rotating
ring's 2 (n - 1) / n S, but bits that depend on neither the size nor where it was cut.
"""

from collections.abc import Iterator

from slackline.plan.collective._instruction import Instruction, Kind

__all__ = ["all_reduce_chain", "broadcast_chain", "reduce_chain"]


def broadcast_chain(rank: int, ranks: int, root: int) -> Iterator[Instruction]:
    """From the root: root -> root + 1 -> ... -> root - 1: n - 1 hops, S bytes over each link."""
    if rank != root:
        yield Instruction(Kind.COPY, (rank - 1) % ranks, 0)
    if (rank + 1) % ranks != root:
        yield Instruction(Kind.SEND, (rank + 1) % ranks, 0)


def reduce_chain(rank: int, ranks: int, root: int) -> Iterator[Instruction]:
    """0 -> 1 -> ... -> n - 1 adds in rank order; one more hop to the root where it is not n - 1."""
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
    """Reduce to rank n - 1, then broadcast from it."""
    yield from reduce_chain(rank, ranks, ranks - 1)
    yield from broadcast_chain(rank, ranks, ranks - 1)

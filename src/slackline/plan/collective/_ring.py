"""The rotating ring: each chunk travels once round to be reduced, and once more to be spread.

Chunk c starts at rank c + 1 and is complete at rank c, its owner. Over three ranks, chunk by step:

    rank 0   SEND_1C2 ADD_2C1   SEND_1C1 ADD_2C0!   SEND_1C0 COPY_2C2   SEND_1C2 COPY_2C1

2 (n - 1) steps of S / n bytes: 2 (n - 1) / n S out of each port, the least that endpoints can do
(Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009).
"""

from collections.abc import Iterator

from slackline.plan.collective._instruction import Instruction, Kind

__all__ = ["all_gather_ring", "all_reduce_ring", "reduce_scatter_ring"]


def reduce_scatter_ring(rank: int, ranks: int, root: int) -> Iterator[Instruction]:
    """After n - 1 steps rank i has the complete chunk i."""
    for step in range(1, ranks):
        yield Instruction(Kind.SEND, (rank + 1) % ranks, (rank - step) % ranks)
        yield Instruction(
            Kind.ADD, (rank - 1) % ranks, (rank - step - 1) % ranks, last=step == ranks - 1
        )


def all_gather_ring(rank: int, ranks: int, root: int) -> Iterator[Instruction]:
    """Spreads chunk i from rank i to everyone in n - 1 steps."""
    for step in range(ranks - 1):
        yield Instruction(Kind.SEND, (rank + 1) % ranks, (rank - step) % ranks)
        yield Instruction(Kind.COPY, (rank - 1) % ranks, (rank - step - 1) % ranks)


def all_reduce_ring(rank: int, ranks: int, root: int) -> Iterator[Instruction]:
    """Reduce-scatter, then all-gather."""
    yield from reduce_scatter_ring(rank, ranks, root)
    yield from all_gather_ring(rank, ranks, root)

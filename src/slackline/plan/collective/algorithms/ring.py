"""The rotating ring: each chunk goes once round the n ranks to be reduced, then once to be spread.

Chunk c starts at rank c + 1 and is complete at rank c, its owner. Over three ranks, step by step:

    rank 0   SEND_1C2 ADD_2C1   SEND_1C1 ADD_2C0!   SEND_1C0 COPY_2C2   SEND_1C2 COPY_2C1

A buffer of S bytes takes 2 (n - 1) steps of S / n bytes, so 2 (n - 1) / n S bytes leave each port.
No algorithm whose endpoints reduce moves less (Patarasuk and Yuan, Bandwidth optimal all-reduce
algorithms, 2009).
"""

from collections.abc import Iterator

from slackline.plan.collective._plan import Instruction, Kind

__all__ = ["all_gather_ring", "all_reduce_ring", "reduce_scatter_ring"]


def reduce_scatter_ring(rank: int, ranks: int, root: int) -> Iterator[Instruction]:
    """Yield a rank's instructions of a reduce-scatter, which completes chunk i at rank i.

    The reduce-scatter takes n - 1 steps.
    """
    for step in range(1, ranks):
        yield Instruction(Kind.SEND, (rank + 1) % ranks, (rank - step) % ranks)
        yield Instruction(
            Kind.ADD, (rank - 1) % ranks, (rank - step - 1) % ranks, last=step == ranks - 1
        )


def all_gather_ring(rank: int, ranks: int, root: int) -> Iterator[Instruction]:
    """Yield a rank's instructions of an all-gather, which spreads chunk i from rank i.

    The all-gather takes n - 1 steps.
    """
    for step in range(ranks - 1):
        yield Instruction(Kind.SEND, (rank + 1) % ranks, (rank - step) % ranks)
        yield Instruction(Kind.COPY, (rank - 1) % ranks, (rank - step - 1) % ranks)


def all_reduce_ring(rank: int, ranks: int, root: int) -> Iterator[Instruction]:
    """Yield a rank's instructions of a reduce-scatter and then an all-gather."""
    yield from reduce_scatter_ring(rank, ranks, root)
    yield from all_gather_ring(rank, ranks, root)

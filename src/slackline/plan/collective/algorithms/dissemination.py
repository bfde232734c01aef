"""The dissemination barrier: in each round a rank learns of twice as many ranks as before.

In round k, rank r sends an empty message to rank r + 2**k and waits for one from rank r - 2**k. The
message says that all ranks of which its sender has learned have entered the barrier. Over five
ranks, rank 0 learns of rank 4, then of 3 and 2, then of 1:

    rank 0   SEND_1C0 ADD_4C0   SEND_2C0 ADD_3C0   SEND_4C0 ADD_1C0!

The barrier takes ceil(log2 n) steps and twice as many messages for each rank. A barrier in which
every rank sends to every other takes one step and 2 (n - 1) messages (Hensgen, Finkel and Manber,
Two algorithms for barrier synchronization, 1988).
"""

from collections.abc import Iterator

from slackline.plan.collective._plan import Instruction, Kind

__all__ = ["barrier_dissemination"]


def barrier_dissemination(rank: int, ranks: int, root: int) -> Iterator[Instruction]:
    """Yield a SEND and an ADD for each round; the ADD of the last round completes the barrier.

    Where n is no power of two, the last round covers some ranks twice, which a barrier permits.
    """
    rounds = (ranks - 1).bit_length()
    for distance in (1 << k for k in range(rounds)):
        yield Instruction(Kind.SEND, (rank + distance) % ranks, 0)
        yield Instruction(Kind.ADD, (rank - distance) % ranks, 0, last=2 * distance >= ranks)

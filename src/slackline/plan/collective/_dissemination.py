"""The dissemination barrier: every rank hears of twice as many others in every round.

In round k rank r tells rank r + 2**k that all it has heard of are here, and waits for the same word
of rank r - 2**k. Over five ranks, rank 0 hears of rank 4, then of 3 and 2, then of 1:

    rank 0   SEND_1C0 ADD_4C0   SEND_2C0 ADD_3C0   SEND_4C0 ADD_1C0!

ceil(log2 n) steps and twice as many messages a rank, where everyone telling everyone takes one step
and 2 (n - 1) messages (Hensgen, Finkel and Manber, Two algorithms for barrier synchronization,
1988).
"""

from collections.abc import Iterator

from slackline.plan.collective._instruction import Instruction, Kind

__all__ = ["barrier_dissemination"]


def barrier_dissemination(rank: int, ranks: int, root: int) -> Iterator[Instruction]:
    """Yield a SEND and an ADD for each round; the ADD of the last round completes the barrier.

    Where n is no power of two, the last round repeats some ranks: a barrier has nothing to count.
    """
    rounds = (ranks - 1).bit_length()
    for distance in (1 << k for k in range(rounds)):
        yield Instruction(Kind.SEND, (rank + distance) % ranks, 0)
        yield Instruction(Kind.ADD, (rank - distance) % ranks, 0, last=2 * distance >= ranks)

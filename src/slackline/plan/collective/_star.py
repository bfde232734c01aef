"""A star: an aggregator in the middle adds for all, and has no data of its own.

It is the member after the last rank. Over two ranks:

    rank 0        SEND_2C0                    COPY_2C0
    rank 1        SEND_2C0                    COPY_2C0
    aggregator    HOLD_0C0 HOLD_1C0 FOLD_C0   SEND_0C0 SEND_1C0

Two steps, and S bytes out of and into each port, where endpoints among themselves need at least
2 (n - 1) / n S. Every segment goes its own way: the sum of the first is on its way back while the
last has not been sent.
"""

from collections.abc import Iterator

from slackline.plan.collective._instruction import NOBODY, Instruction, Kind

__all__ = ["all_reduce_star"]


def all_reduce_star(member: int, ranks: int, root: int) -> Iterator[Instruction]:
    """Everyone sends to the aggregator, member `ranks`, who folds in rank order and sends back."""
    if member < ranks:
        yield Instruction(Kind.SEND, ranks, 0)
        yield Instruction(Kind.COPY, ranks, 0)
        return
    yield from (Instruction(Kind.HOLD, rank, 0) for rank in range(ranks))
    yield Instruction(Kind.FOLD, NOBODY, 0)
    yield from (Instruction(Kind.SEND, rank, 0) for rank in range(ranks))

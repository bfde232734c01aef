"""The star: an aggregator, which has no data of its own, adds the contributions of all n ranks.

The aggregator is the member after the last rank. Over two ranks:

    rank 0        SEND_2C0                              COPY_2C0
    rank 1        SEND_2C0                              COPY_2C0
    aggregator    BUFFER_0C0 BUFFER_1C0 REDUCE_ALL_C0   SEND_0C0 SEND_1C0

The star takes two steps, and a buffer's S bytes leave and enter each port once. An all-reduce among
the endpoints alone needs at least 2 (n - 1) / n S. Segments are independent: the sum of the first
segment is on its way back while the last segment has not been sent.
"""

from collections.abc import Iterator

from slackline.plan.collective._plan import NOBODY, Instruction, Kind

__all__ = ["all_reduce_star"]


def all_reduce_star(member: int, ranks: int, root: int) -> Iterator[Instruction]:
    """Yield a member's instructions of the star; member `ranks` is the aggregator.

    Every rank sends its data to the aggregator, which reduces in rank order and sends the result
    back.
    """
    if member < ranks:
        yield Instruction(Kind.SEND, ranks, 0)
        yield Instruction(Kind.COPY, ranks, 0)
        return
    yield from (Instruction(Kind.BUFFER, rank, 0) for rank in range(ranks))
    yield Instruction(Kind.REDUCE_ALL, NOBODY, 0)
    yield from (Instruction(Kind.SEND, rank, 0) for rank in range(ranks))

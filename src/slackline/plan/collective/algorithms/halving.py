"""Halving-doubling: ranks pair up at distances p/2, p/4, ..., 1 and back, p a power of two.

Each exchange of the first phase halves the chunks that a rank still reduces, until rank i has the
complete chunk i. Each exchange of the second phase doubles the complete chunks that a rank has.
Over four ranks, rank 0 reduces chunks 0 and 1, then 0; then rank 0 has chunks 0 and 1, then all
four:

    rank 0   SEND_2C2 SEND_2C3 ADD_2C0 ADD_2C1   SEND_1C1 ADD_1C0!
             SEND_1C0 COPY_1C1   SEND_2C0 SEND_2C1 COPY_2C2 COPY_2C3

The algorithm takes 2 log2(p) steps, and 2 (p - 1) / p of the buffer's S bytes leave each port.
Where the number of ranks is no power of two, rank p + i first adds all its data to rank i, and at
the end receives the result from rank i: two more steps, and for that pair S bytes more in each
direction (Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in
MPICH, 2005, section 4.5).
"""

from collections.abc import Iterator

from slackline.plan.collective._plan import Instruction, Kind

__all__ = ["all_reduce_halving_doubling", "halving_chunks"]


def halving_chunks(ranks: int) -> int:
    """Return the largest power of two that is at most `ranks`.

    The plan pairs this number of ranks, and cuts the tensor into this number of chunks.
    """
    return 1 << (ranks.bit_length() - 1)


def all_reduce_halving_doubling(rank: int, ranks: int, root: int) -> Iterator[Instruction]:
    """Yield a rank's instructions of the halving-doubling all-reduce.

    Only the first p ranks pair up, p the largest power of two. A paired rank i first adds the data
    of the extra rank p + i, if there is one, and at the end sends the result to that rank.
    """
    paired = halving_chunks(ranks)
    chunks = range(paired)
    if rank >= paired:
        yield from (Instruction(Kind.SEND, rank - paired, chunk) for chunk in chunks)
        yield from (Instruction(Kind.COPY, rank - paired, chunk) for chunk in chunks)
        return
    extra = rank + paired
    if extra < ranks:
        yield from (Instruction(Kind.ADD, extra, chunk) for chunk in chunks)
    distances = [1 << bit for bit in range(paired.bit_length() - 1)]
    for distance in reversed(distances):
        peer = rank ^ distance
        yield from (Instruction(Kind.SEND, peer, chunk) for chunk in _near(peer, distance))
        for chunk in _near(rank, distance):
            yield Instruction(Kind.ADD, peer, chunk, last=distance == 1)
    for distance in distances:
        peer = rank ^ distance
        yield from (Instruction(Kind.SEND, peer, chunk) for chunk in _near(rank, distance))
        yield from (Instruction(Kind.COPY, peer, chunk) for chunk in _near(peer, distance))
    if extra < ranks:
        yield from (Instruction(Kind.SEND, extra, chunk) for chunk in chunks)


def _near(rank: int, distance: int) -> range:
    """Return the chunks of the aligned block of `distance` ranks that contains `rank`."""
    start = rank // distance * distance
    return range(start, start + distance)

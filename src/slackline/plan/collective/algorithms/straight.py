"""Direct and mesh plans: every message goes straight to the rank that must have it.

Rank r sends to rank r + 1 first and expects rank r - 1 first, so that no rank is the first target
of several others.
"""

from collections.abc import Iterator

from slackline.plan.collective._plan import NOBODY, Instruction, Kind

__all__ = [
    "all_gather_mesh",
    "all_reduce_direct",
    "all_reduce_flat_tree",
    "all_reduce_mesh",
    "all_to_all_direct",
    "broadcast_direct",
    "gather_direct",
    "point_to_point_direct",
    "reduce_direct",
    "reduce_scatter_mesh",
    "scatter_direct",
]

Steps = Iterator[Instruction]


def all_reduce_direct(rank: int, ranks: int, root: int) -> Steps:
    """Yield a rank's instructions of an all-reduce in one step: all ranks exchange all data.

    Every rank sends its whole buffer to every other rank and reduces all contributions itself. For
    n ranks, n - 1 copies of the buffer leave each port.

    rank 0   SEND_1C0 SEND_2C0   BUFFER_2C0 BUFFER_1C0   REDUCE_ALL_C0
    """
    yield from (Instruction(Kind.SEND, peer, 0) for peer in _after(rank, ranks))
    yield from (Instruction(Kind.BUFFER, peer, 0) for peer in _before(rank, ranks))
    yield Instruction(Kind.REDUCE_ALL, NOBODY, 0)


def reduce_scatter_mesh(rank: int, ranks: int, root: int) -> Steps:
    """Yield a rank's instructions of a reduce-scatter in one step: chunk i goes straight to rank i.

    Rank i reduces all contributions to chunk i. For n ranks, (n - 1) / n of the buffer leaves each
    port.

    rank 0   SEND_1C1 SEND_2C2   BUFFER_2C0 BUFFER_1C0   REDUCE_ALL_C0
    """
    yield from (Instruction(Kind.SEND, peer, peer) for peer in _after(rank, ranks))
    yield from (Instruction(Kind.BUFFER, peer, rank) for peer in _before(rank, ranks))
    yield Instruction(Kind.REDUCE_ALL, NOBODY, rank)


def all_gather_mesh(rank: int, ranks: int, root: int) -> Steps:
    """Yield a rank's instructions of an all-gather in one step: rank i sends chunk i to all others.

    rank 0   SEND_1C0 SEND_2C0   COPY_2C2 COPY_1C1
    """
    yield from (Instruction(Kind.SEND, peer, rank) for peer in _after(rank, ranks))
    yield from (Instruction(Kind.COPY, peer, peer) for peer in _before(rank, ranks))


def all_reduce_mesh(rank: int, ranks: int, root: int) -> Steps:
    """Yield a rank's instructions of a reduce-scatter and then an all-gather.

    The plan takes two steps. For n ranks, 2 (n - 1) / n times the buffer's bytes leave each port.
    """
    yield from reduce_scatter_mesh(rank, ranks, root)
    yield from all_gather_mesh(rank, ranks, root)


def all_reduce_flat_tree(rank: int, ranks: int, root: int) -> Steps:
    """Yield a rank's instructions of an all-reduce in two steps: rank 0 reduces for all ranks.

    Every other rank sends its buffer to rank 0, which reduces all contributions in rank order and
    sends the result back. For n ranks, n - 1 buffers enter and leave rank 0's port. All ranks
    together send 2 (n - 1) messages, the fewest of all plans with so few steps.

    rank 0   BUFFER_2C0 BUFFER_1C0 REDUCE_ALL_C0   SEND_1C0 SEND_2C0
    rank 1   SEND_0C0                              COPY_0C0
    """
    yield from reduce_direct(rank, ranks, 0)
    yield from broadcast_direct(rank, ranks, 0)


def broadcast_direct(rank: int, ranks: int, root: int) -> Steps:
    """Yield a rank's instructions of a broadcast in one step: the root sends to every other rank.

    For n ranks, n - 1 copies of the buffer leave the root's port.
    """
    if rank == root:
        yield from (Instruction(Kind.SEND, peer, 0) for peer in _after(rank, ranks))
    else:
        yield Instruction(Kind.COPY, root, 0)


def reduce_direct(rank: int, ranks: int, root: int) -> Steps:
    """Yield a rank's instructions of a reduce in one step: every rank sends its data to the root.

    The root reduces all contributions in rank order. For n ranks, n - 1 buffers enter its port.
    """
    if rank == root:
        yield from (Instruction(Kind.BUFFER, peer, 0) for peer in _before(rank, ranks))
        yield Instruction(Kind.REDUCE_ALL, NOBODY, 0)
    else:
        yield Instruction(Kind.SEND, root, 0)


def gather_direct(rank: int, ranks: int, root: int) -> Steps:
    """Yield a rank's instructions of a gather in one step: rank i sends chunk i to the root."""
    if rank == root:
        yield from (Instruction(Kind.COPY, peer, peer) for peer in _before(rank, ranks))
    else:
        yield Instruction(Kind.SEND, root, rank)


def scatter_direct(rank: int, ranks: int, root: int) -> Steps:
    """Yield a rank's instructions of a scatter in one step: the root sends chunk i to rank i."""
    if rank == root:
        yield from (Instruction(Kind.SEND, peer, peer) for peer in _after(rank, ranks))
    else:
        yield Instruction(Kind.COPY, root, rank)


def all_to_all_direct(rank: int, ranks: int, root: int) -> Steps:
    """Yield a rank's instructions of an all-to-all in one step.

    With n ranks, chunk i * n + j goes straight from rank i to rank j.
    """
    yield from (Instruction(Kind.SEND, peer, rank * ranks + peer) for peer in _after(rank, ranks))
    yield from (Instruction(Kind.COPY, peer, peer * ranks + rank) for peer in _before(rank, ranks))


def point_to_point_direct(rank: int, ranks: int, root: int) -> Steps:
    """Yield a rank's instructions of one message from the root to the other rank of a pair."""
    yield from broadcast_direct(rank, ranks, root)


def _after(rank: int, ranks: int) -> Iterator[int]:
    """Yield the peers in the order in which `rank` sends to them: r + 1, r + 2, ..."""
    return ((rank + step) % ranks for step in range(1, ranks))


def _before(rank: int, ranks: int) -> Iterator[int]:
    """Yield the peers in the order in which `rank` expects their messages: r - 1, r - 2, ..."""
    return ((rank - step) % ranks for step in range(1, ranks))

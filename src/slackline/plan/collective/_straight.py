"""Plans in which every message goes straight to where it is due: direct and mesh.

Rank r begins with rank r + 1 and expects rank r - 1 first: no rank is everybody's first target.
"""

from collections.abc import Iterator

from slackline.plan.collective._instruction import NOBODY, Instruction, Kind

__all__ = [
    "all_gather_mesh",
    "all_reduce_direct",
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
    """Everyone sends everyone everything and folds: one step, (n - 1) S bytes out of each port.

    rank 0   SEND_1C0 SEND_2C0   HOLD_2C0 HOLD_1C0   FOLD_C0
    """
    yield from (Instruction(Kind.SEND, peer, 0) for peer in _after(rank, ranks))
    yield from (Instruction(Kind.HOLD, peer, 0) for peer in _before(rank, ranks))
    yield Instruction(Kind.FOLD, NOBODY, 0)


def reduce_scatter_mesh(rank: int, ranks: int, root: int) -> Steps:
    """Chunk i goes straight to rank i, who folds: one step, (n - 1) / n S bytes out of each port.

    rank 0   SEND_1C1 SEND_2C2   HOLD_2C0 HOLD_1C0   FOLD_C0
    """
    yield from (Instruction(Kind.SEND, peer, peer) for peer in _after(rank, ranks))
    yield from (Instruction(Kind.HOLD, peer, rank) for peer in _before(rank, ranks))
    yield Instruction(Kind.FOLD, NOBODY, rank)


def all_gather_mesh(rank: int, ranks: int, root: int) -> Steps:
    """Rank i sends chunk i straight to everyone: one step.

    rank 0   SEND_1C0 SEND_2C0   COPY_2C2 COPY_1C1
    """
    yield from (Instruction(Kind.SEND, peer, rank) for peer in _after(rank, ranks))
    yield from (Instruction(Kind.COPY, peer, peer) for peer in _before(rank, ranks))


def all_reduce_mesh(rank: int, ranks: int, root: int) -> Steps:
    """Reduce-scatter, then all-gather: two steps, 2 (n - 1) / n S bytes out of each port."""
    yield from reduce_scatter_mesh(rank, ranks, root)
    yield from all_gather_mesh(rank, ranks, root)


def broadcast_direct(rank: int, ranks: int, root: int) -> Steps:
    """The root sends everyone everything: one step, (n - 1) S bytes out of its port."""
    if rank == root:
        yield from (Instruction(Kind.SEND, peer, 0) for peer in _after(rank, ranks))
    else:
        yield Instruction(Kind.COPY, root, 0)


def reduce_direct(rank: int, ranks: int, root: int) -> Steps:
    """Everyone sends the root everything, who folds: one step, (n - 1) S bytes into its port."""
    if rank == root:
        yield from (Instruction(Kind.HOLD, peer, 0) for peer in _before(rank, ranks))
        yield Instruction(Kind.FOLD, NOBODY, 0)
    else:
        yield Instruction(Kind.SEND, root, 0)


def gather_direct(rank: int, ranks: int, root: int) -> Steps:
    """Rank i sends chunk i to the root: one step."""
    if rank == root:
        yield from (Instruction(Kind.COPY, peer, peer) for peer in _before(rank, ranks))
    else:
        yield Instruction(Kind.SEND, root, rank)


def scatter_direct(rank: int, ranks: int, root: int) -> Steps:
    """The root sends chunk i to rank i: one step."""
    if rank == root:
        yield from (Instruction(Kind.SEND, peer, peer) for peer in _after(rank, ranks))
    else:
        yield Instruction(Kind.COPY, root, rank)


def all_to_all_direct(rank: int, ranks: int, root: int) -> Steps:
    """Chunk i * n + j goes straight from rank i to rank j: one step."""
    yield from (Instruction(Kind.SEND, peer, rank * ranks + peer) for peer in _after(rank, ranks))
    yield from (Instruction(Kind.COPY, peer, peer * ranks + rank) for peer in _before(rank, ranks))


def point_to_point_direct(rank: int, ranks: int, root: int) -> Steps:
    """The root sends to the other rank of a pair."""
    yield from broadcast_direct(rank, ranks, root)


def _after(rank: int, ranks: int) -> Iterator[int]:
    """The peers in the order in which `rank` sends to them: r + 1, r + 2, ..."""
    return ((rank + step) % ranks for step in range(1, ranks))


def _before(rank: int, ranks: int) -> Iterator[int]:
    """The peers in the order in which their messages are expected: r - 1 sends to `rank` first."""
    return ((rank - step) % ranks for step in range(1, ranks))

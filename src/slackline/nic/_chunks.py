"""Where the chunks of a collective lie: (chunk, source, target, count).

An address is 0 where this rank has nothing to read, or nothing to store.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Chunk", "all_to_all", "chunk_between", "each_to_own", "own_to_each"]

Chunk = tuple[int, int, int, int]


def each_to_own(
    rank: int, sources: Sequence[int], counts: Sequence[int], target: int
) -> list[Chunk]:
    """A source for every chunk; what becomes of the rank's own is stored."""
    return [
        (i, address, target if i == rank else 0, count)
        for i, (address, count) in enumerate(zip(sources, counts, strict=True))
    ]


def own_to_each(
    rank: int, source: int, targets: Sequence[int], counts: Sequence[int]
) -> list[Chunk]:
    """The source of the rank's own chunk; a target for every one."""
    return [
        (i, source if i == rank else 0, address, count)
        for i, (address, count) in enumerate(zip(targets, counts, strict=True))
    ]


def all_to_all(
    rank: int,
    sources: Sequence[int],
    source_counts: Sequence[int],
    targets: Sequence[int],
    target_counts: Sequence[int],
) -> list[Chunk]:
    """A source for the chunk to each rank, a target for the chunk from each."""
    n = len(sources)
    sent = [
        (
            chunk_between(rank, i, n),
            sources[i],
            targets[rank] if i == rank else 0,
            source_counts[i],
        )
        for i in range(n)
    ]
    return sent + [
        (chunk_between(i, rank, n), 0, targets[i], target_counts[i]) for i in range(n) if i != rank
    ]


def chunk_between(source: int, target: int, ranks: int) -> int:
    """Return the engine's number of the chunk that an all_to_all moves from `source` to `target`.

    The plan numbers all n * n of them, a frame only up to 65536. A rank has 2 n - 1 of them, and
    these are the ones that need numbers of their own: i + j tells apart the ranks at the other end,
    and the last bit tells what rank i sends to rank j from what rank j sends to rank i.
    """
    return 2 * ((source + target) % ranks) + (source < target)

"""Where the chunks of a collective lie: (chunk, source, target, count).

An address is 0 where this rank has nothing to read, or nothing to store.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Chunk", "all_to_all", "each_to_own", "own_to_each"]

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
    """Chunk i * n + j goes from rank i to rank j."""
    n = len(sources)
    sent = [
        (rank * n + i, sources[i], targets[rank] if i == rank else 0, source_counts[i])
        for i in range(n)
    ]
    return sent + [(i * n + rank, 0, targets[i], target_counts[i]) for i in range(n) if i != rank]

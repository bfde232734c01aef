"""Memory of the chunks of a collective, as tuples (chunk, source, target, count).

A chunk is the part of the data that one rank owns. Source and target are addresses, 0 where this
rank has nothing to read or to store. The count is in elements.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Chunk", "all_to_all", "chunk_between", "each_to_own", "own_to_each"]

Chunk = tuple[int, int, int, int]


def each_to_own(
    rank: int, sources: Sequence[int], counts: Sequence[int], target: int
) -> list[Chunk]:
    """Return the chunks of a scatter, each with a source; this rank's own also has a target."""
    return [
        (i, address, target if i == rank else 0, count)
        for i, (address, count) in enumerate(zip(sources, counts, strict=True))
    ]


def own_to_each(
    rank: int, source: int, targets: Sequence[int], counts: Sequence[int]
) -> list[Chunk]:
    """Return the chunks of a gather, each with a target; this rank's own also has a source."""
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
    """Return the chunks of an all_to_all: a source for each receiver, a target for each sender."""
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

    The plan numbers all n * n chunks, but a frame has only 65536 chunk numbers. A rank takes part
    in 2 n - 1 chunks, and only these need different numbers. The term (i + j) % n tells apart the
    ranks at the other end, and the lowest bit the two directions between rank i and rank j.
    """
    return 2 * ((source + target) % ranks) + (source < target)

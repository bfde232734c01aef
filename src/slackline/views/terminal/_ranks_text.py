"""Several ranks as a short text."""

from collections.abc import Iterable

__all__ = ["ranks_text"]


def ranks_text(ranks: Iterable[int], longest: int = 48) -> str:
    """Return ranks in their order as text: "0-3" for (0, 1, 2, 3), "0,2" for (0, 2).

    A text of more than `longest` characters is cut, and the number of ranks follows.
    """
    given = list(ranks)
    runs: list[tuple[int, int]] = []
    for rank in given:
        if runs and rank == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], rank
        else:
            runs.append((rank, rank))
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"{text[:longest]}... ({len(given)} ranks)" if len(text) > longest else text

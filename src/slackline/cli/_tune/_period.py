"""The period of a sequence of operations."""

from collections.abc import Hashable, Sequence

__all__ = ["LEAST_REPEATS", "first_repeats", "period"]

LEAST_REPEATS = 3
"""The number of times that a period must occur to count as one."""


def period(sequence: Sequence[Hashable]) -> int | None:
    """Return the smallest p with sequence[i] == sequence[i + p] for every i, or None.

    The sequence must be at least LEAST_REPEATS periods long; the last period may be incomplete. The
    call takes time in proportion to the sequence's length: the smallest period is the length minus
    that of the longest proper prefix that is also a suffix (Knuth, Morris and Pratt's failure
    function).
    """
    borders = [0] * len(sequence)
    length = 0
    for end in range(1, len(sequence)):
        while length and sequence[end] != sequence[length]:
            length = borders[length - 1]
        length += sequence[end] == sequence[length]
        borders[end] = length
    if not sequence:
        return None
    smallest = len(sequence) - borders[-1]
    return smallest if smallest * LEAST_REPEATS <= len(sequence) else None


def first_repeats(sequence: Sequence[Hashable], pattern: Sequence[Hashable]) -> int | None:
    """Return the first index at which `pattern` occurs LEAST_REPEATS times in a row, or None."""
    repeated = list(pattern) * LEAST_REPEATS
    for index in range(len(sequence) - len(repeated) + 1):
        if sequence[index] == repeated[0] and (
            list(sequence[index : index + len(repeated)]) == repeated
        ):
            return index
    return None

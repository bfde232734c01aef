"""The free parts of this process's address space."""

from itertools import pairwise
from pathlib import Path

__all__ = ["vast_bytes"]

_END = 1 << 47
"""The end of the address space of a program on x86-64; on other machines a program has more."""
_TIB = 1 << 40


def vast_bytes() -> int:
    """Return a size that fits into the address space now, but not twice, in whole TiB.

    Programs differ in the free parts of their address space: one that may be loaded at any address
    lies in the middle, and threads that have ended leave small pieces.
    """
    places = [(0, 0), *_mappings(), (_END, _END)]
    gaps = sorted(after[0] - before[1] for before, after in pairwise(places))
    second, first = gaps[-2:]
    least = max(first // 2, second)
    return (least + first) // 2 // _TIB * _TIB


def _mappings() -> list[tuple[int, int]]:
    """Return the beginning and the end of each mapping, in their order."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(each, 16) for each in line.split(maxsplit=1)[0].split("-"))
        if end <= _END:
            found.append((start, end))
    return found

"""The layout of tensors in memory: aligned offsets, and a check for gaps."""

from collections.abc import Sequence
from itertools import accumulate

from torch import Tensor

__all__ = ["is_dense", "layout"]

_LINE_BYTES = 64


def layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return the offset of each block of `sizes` bytes, and the total length in bytes.

    Each offset is a multiple of 64, the length of a cache line.
    """
    lines = (-(-size // _LINE_BYTES) * _LINE_BYTES for size in sizes)
    ends = list(accumulate(lines, initial=0))
    return ends[:-1], ends[-1]


def is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor's elements fill one range of memory, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return tensor.numel() == 0
            expected *= size
    return True

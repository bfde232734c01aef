"""Where things lie in memory."""

from collections.abc import Sequence
from itertools import accumulate

from torch import Tensor

__all__ = ["is_dense", "layout"]

_LINE_BYTES = 64


def layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Offsets of blocks of `sizes` bytes, each at a multiple of 64, and the bytes of all."""
    lines = (-(-size // _LINE_BYTES) * _LINE_BYTES for size in sizes)
    ends = list(accumulate(lines, initial=0))
    return ends[:-1], ends[-1]


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one stretch of memory, the dimensions in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return tensor.numel() == 0
            expected *= size
    return True

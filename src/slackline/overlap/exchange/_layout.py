"""The layout of tensors in memory: aligned offsets, and a check for gaps."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

__all__ = ["is_dense", "laid_out", "layout", "on", "spanned", "zeros"]

_LINE_BYTES = 64


def layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return the offset of each block of `sizes` bytes, and the total length in bytes.

    Each offset is a multiple of 64, the length of a cache line.
    """
    lines = (-(-size // _LINE_BYTES) * _LINE_BYTES for size in sizes)
    ends = list(accumulate(lines, initial=0))
    return ends[:-1], ends[-1]


def on(storage: torch.UntypedStorage, offset: int, count: int, dtype: torch.dtype) -> Tensor:
    """Return a tensor on the memory of `storage` that has a version counter of its own.

    `offset` is in bytes, `count` in elements.
    """
    made = torch.empty(0, dtype=dtype, device=storage.device)
    made.set_(storage, offset // dtype.itemsize, (count,))  # type: ignore[call-overload]
    return made


def zeros(requests: Sequence[tuple[int, torch.dtype]], device: torch.device) -> list[Tensor]:
    """Return a flat tensor of zeros for each (count, type), all in one storage on a device."""
    offsets, total = layout([count * dtype.itemsize for count, dtype in requests])
    storage = torch.zeros(total, dtype=torch.uint8, device=device).untyped_storage()
    return [
        on(storage, offset, count, dtype)
        for offset, (count, dtype) in zip(offsets, requests, strict=True)
    ]


def spanned(first: Tensor, last: Tensor) -> Tensor:
    """Return one flat tensor over the memory of a storage from `first` to the end of `last`."""
    end = last.data_ptr() + last.numel() * last.itemsize
    count = (end - first.data_ptr()) // first.itemsize
    offset = int(first.storage_offset()) * first.itemsize
    return on(first.untyped_storage(), offset, count, first.dtype)


def laid_out(flats: Sequence[Tensor]) -> list[Tensor]:
    """Lay out all flat tensors of a storage again, in this order, and fill the storage with zeros.

    Returns the new tensors; the values of `flats` are lost.
    """
    offsets, total = layout([flat.numel() * flat.itemsize for flat in flats])
    storage = flats[0].untyped_storage()
    on(storage, 0, total, torch.uint8).zero_()
    return [
        on(storage, offset, flat.numel(), flat.dtype)
        for offset, flat in zip(offsets, flats, strict=True)
    ]


def is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor's elements fill one range of memory, in any order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return tensor.numel() == 0
            expected *= size
    return True

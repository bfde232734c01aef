"""The format of a message between pipeline stages: a header that describes tensors, and a body.

    0                HEADER_BYTES                                  capacity
    | header          | tensor 0 | tensor 1 | ...  | unused ........|
                      each at a multiple of 64 bytes

The header holds the tensors' shapes, so that shapes may differ from one microbatch to the next. The
header also holds the strides of a tensor that fills its memory without gaps: a kernel that adds in
the order of the strides then has bit-identical results on both sides.
"""

import ctypes
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from slackline.errors import InternalError, UsageError

__all__ = [
    "HEADER_BYTES",
    "Entry",
    "Header",
    "Layout",
    "layout_of",
    "pack",
    "read_header",
    "stamp",
    "unpack",
    "write_header",
]

HEADER_BYTES = 1024
_WORDS = HEADER_BYTES // 8
_LINE = 64
_MAGIC = 0x534C4B50
_FIXED = 6
_pack_fixed = struct.Struct(f"<{_FIXED}q").pack
_unpack_fixed = struct.Struct(f"<{_FIXED}q").unpack_from
_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}
_ABSENT, _NEEDS_GRAD = 1, 2


@dataclass(frozen=True, slots=True)
class Entry:
    """The description of one tensor in the header of a message between pipeline stages."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    needs_grad: bool
    absent: bool
    """True if the tensor is None, a missing gradient; shape and stride are then empty."""
    nbytes: int = field(init=False)
    """The bytes of the tensor in the message, rounded up to a multiple of 64."""

    def __post_init__(self) -> None:
        count = 0 if self.absent else math.prod(self.shape) * self.dtype.itemsize
        object.__setattr__(self, "nbytes", -(-count // _LINE) * _LINE)

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return "none" if self.absent else f"{kind} {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The tensors of a message, and their part of its header."""

    entries: tuple[Entry, ...]
    body_bytes: int = field(init=False)
    """The bytes of all tensors in the message."""
    packed: bytes = field(init=False)
    """The part of the header that describes the tensors."""

    def __post_init__(self) -> None:
        words: list[int] = []
        for entry in self.entries:
            flags = entry.absent * _ABSENT | entry.needs_grad * _NEEDS_GRAD
            words += (_CODES[entry.dtype], flags, len(entry.shape), *entry.shape, *entry.stride)
        object.__setattr__(self, "body_bytes", sum([entry.nbytes for entry in self.entries]))
        object.__setattr__(self, "packed", struct.pack(f"<{len(words)}q", *words))


class Header(NamedTuple):
    """The header of a message between pipeline stages."""

    sent_ns: int
    step: int
    microbatch: int
    layout: Layout


_Description = tuple[torch.dtype, Sequence[int], Sequence[int], bool]
"""The type, shape, strides and need of a gradient of a tensor."""


def layout_of(tensors: Sequence[Tensor | None], what: str) -> Layout:
    """Return the layout of a message with these tensors.

    Raises UsageError, with a text that begins with `what`, for tensors that cannot be sent.
    """
    described: list[_Description | None] = []
    for place, tensor in enumerate(tensors):
        if tensor is None:
            described.append(None)
            continue
        if not isinstance(tensor, Tensor):
            kind = type(tensor).__name__
            raise UsageError(f"{what}: output {place} must be a tensor, not a {kind}")
        if tensor.layout is not torch.strided:
            raise UsageError(f"{what}: tensor {place} must be dense, not {tensor.layout}")
        if tensor.dtype not in _CODES:
            raise UsageError(f"{what}: tensor {place} is {tensor.dtype}, which cannot be sent")
        described.append((tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad))
    layout = _layout(tuple(described))
    nbytes = 8 * _FIXED + len(layout.packed)
    if nbytes > HEADER_BYTES:
        raise UsageError(
            f"{what}: the shapes of {len(described)} tensors need {nbytes} bytes, but the header "
            f"of a message has {HEADER_BYTES}"
        )
    return layout


@lru_cache(maxsize=256)  # The shapes are the same in most steps, and packing them takes longer.
def _layout(described: tuple[_Description | None, ...]) -> Layout:
    """Return the layout of a message; a tensor with gaps is sent without them."""
    found = []
    for each in described:
        if each is None:
            found.append(Entry(torch.uint8, (), (), False, True))
            continue
        dtype, shape, stride, needs_grad = each
        kept = tuple(stride) if _is_dense(shape, stride) else _contiguous(shape)
        found.append(Entry(dtype, tuple(shape), kept, needs_grad, False))
    return Layout(tuple(found))


def write_header(address: int, header: Header) -> None:
    """Write a message's header to the HEADER_BYTES bytes of memory at `address`."""
    sent_ns, step, microbatch, layout = header
    data = _pack_fixed(_MAGIC, sent_ns, step, microbatch, len(layout.entries), layout.body_bytes)
    data += layout.packed
    ctypes.memmove(address, data, len(data))


def stamp(address: int, sent_ns: int) -> None:
    """Write the time of a message's departure into the header at `address`."""
    ctypes.c_int64.from_address(address + 8).value = sent_ns


def read_header(address: int) -> Header:
    """Read the message header at `address`; raise InternalError if none is there."""
    data = ctypes.string_at(address, HEADER_BYTES)
    magic, sent_ns, step, microbatch, count, _ = _unpack_fixed(data)
    if magic != _MAGIC:
        raise InternalError(f"a pipeline message begins with {magic:#x}, not {_MAGIC:#x}")
    return Header(sent_ns, step, microbatch, _layout_in(count, data[8 * _FIXED :]))


@lru_cache(maxsize=256)  # The shapes are the same in most steps, and reading them takes longer.
def _layout_in(count: int, data: bytes) -> Layout:
    """Return the layout of `count` tensors, with which the rest of a header begins."""
    words = struct.unpack(f"<{_WORDS - _FIXED}q", data)
    entries, at = [], 0
    for _ in range(count):
        code, flags, dimensions = words[at : at + 3]
        at += 3
        shape = words[at : at + dimensions]
        stride = words[at + dimensions : at + 2 * dimensions]
        at += 2 * dimensions
        absent, needs_grad = bool(flags & _ABSENT), bool(flags & _NEEDS_GRAD)
        entries.append(Entry(_DTYPES[code], shape, stride, needs_grad, absent))
    return Layout(tuple(entries))


def pack(body: Tensor, start: int, layout: Layout, tensors: Sequence[Tensor | None]) -> None:
    """Copy tensors into the body of a message, from byte `start` of a flat uint8 host tensor on.

    Copies from a device are only queued, not waited for.
    """
    for place, tensor in zip(unpack(body, start, layout), tensors, strict=True):
        if place is not None and tensor is not None:
            place.copy_(tensor.detach(), non_blocking=True)


def unpack(body: Tensor, start: int, layout: Layout) -> list[Tensor | None]:
    """Return the tensors of a message as views of `body`, with None for each missing tensor.

    The message's body begins at byte `start` of `body`.
    """
    found: list[Tensor | None] = []
    at = start
    for entry in layout.entries:
        if entry.absent:
            found.append(None)
            continue
        flat = body[at : at + entry.nbytes].view(entry.dtype)
        found.append(flat.as_strided(entry.shape, entry.stride))
        at += entry.nbytes
    return found


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return expected > 0


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))

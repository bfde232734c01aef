"""Checks of the tensors that torch passes to an operation, and the codes of their types."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import distributed as dist

from slackline.backend._torch import reduction_number
from slackline.backend.staging import Buffers, flat, is_plain
from slackline.errors import UsageError
from slackline.wire import DType, ReduceOp

__all__ = [
    "REDUCTIONS",
    "apart",
    "are_separate",
    "check_alike",
    "first_of",
    "moved_as",
    "only_list",
    "only_tensor",
    "premultiplier",
    "reduced_as",
    "whole_target",
]


def only_tensor(tensors: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the only tensor of torch's list; raise UsageError unless there is exactly one."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise UsageError(f"an operation takes one tensor of each rank, not {len(tensors)}")
    return tensors[0]


def only_list(
    lists: Sequence[torch.Tensor] | Sequence[Sequence[torch.Tensor]], size: int, role: str
) -> list[torch.Tensor]:
    """Return the list of one tensor for each rank, which torch may pass within another list.

    Raises UsageError, whose message names `role`, if the list does not have `size` tensors.
    """
    if len(lists) == 1 and not isinstance(lists[0], torch.Tensor):
        parts = list(lists[0])
    else:
        parts = [part for part in lists if isinstance(part, torch.Tensor)]
    if len(parts) != size:
        raise UsageError(
            f"the {role} must have one tensor for each of {size} ranks, not {len(parts)}"
        )
    return parts


def check_alike(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
    """Raise UsageError unless all tensors have the operation's element type."""
    for tensor in tensors:
        if tensor.dtype != dtype:
            raise UsageError(
                f"an operation takes tensors of one type, not {dtype} and {tensor.dtype}"
            )


def first_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the first tensor of a coalesced operation; raise UsageError if there is none."""
    if not tensors:
        raise UsageError("a coalesced operation takes at least one tensor, not 0")
    return tensors[0]


def apart(
    buffers: Buffers,
    source: torch.Tensor,
    targets: Sequence[torch.Tensor],
    addresses: Sequence[int],
    *,
    own: int | None = None,
) -> int:
    """Return the address of a source's elements, copied if the source shares a target's memory.

    `addresses` are those of the targets. The source may be the target of the index `own`, but no
    other part of the targets: data of other ranks would overwrite it before it is read.
    """
    begin = buffers.source(source)
    end = begin + source.numel() * source.element_size()
    for place, (target, address) in enumerate(zip(targets, addresses, strict=True)):
        if place == own and address == begin:
            continue
        if begin < address + target.numel() * target.element_size() and address < end:
            return buffers.temporary(source.clone())
    return begin


def whole_target(
    target: torch.Tensor,
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor] | None]:
    """Return a flat tensor for the results of an operation, and None if it is the target itself.

    For a target with gaps return a new tensor, and with it the pair of the target and this tensor.
    """
    if is_plain(target):
        return flat(target), None
    made = torch.empty(target.numel(), dtype=target.dtype, device=target.device)
    return made, (target, made)


def are_separate(whole: torch.Tensor, part: torch.Tensor, rank: int) -> bool:
    """Return whether two flat tensors share no memory, or `part` is its own place in `whole`.

    `whole` has the parts of all ranks, one after the other, and `part` is that of `rank`.
    """
    begin, first = part.data_ptr(), whole.data_ptr()
    if begin == first + rank * part.nbytes:
        return True
    return begin >= first + whole.nbytes or first >= begin + part.nbytes


_PLAIN: Final[Mapping[torch.dtype, DType]] = MappingProxyType(
    {
        torch.float32: DType.FLOAT32,
        torch.float64: DType.FLOAT64,
        torch.float16: DType.FLOAT16,
        torch.bfloat16: DType.BFLOAT16,
        torch.int8: DType.INT8,
        torch.int16: DType.INT16,
        torch.int32: DType.INT32,
        torch.int64: DType.INT64,
        torch.uint8: DType.UINT8,
        torch.uint16: DType.UINT16,
        torch.uint32: DType.UINT32,
        torch.uint64: DType.UINT64,
        torch.bool: DType.BOOL,
    }
)
_PAIRS: Final[Mapping[torch.dtype, DType]] = MappingProxyType(
    {
        torch.complex32: DType.FLOAT16,
        torch.complex64: DType.FLOAT32,
        torch.complex128: DType.FLOAT64,
    }
)
_WHOLE: Final = {dtype: code for dtype, code in _PLAIN.items() if not dtype.is_floating_point}
_NUMBERS: Final = {dtype: code for dtype, code in _PLAIN.items() if code is not DType.BOOL}

REDUCTIONS: Final[Mapping[int, tuple[ReduceOp, Mapping[torch.dtype, DType]]]] = MappingProxyType(
    {
        reduction_number(op): (code, MappingProxyType(dict(dtypes)))
        for op, code, dtypes in (
            (dist.ReduceOp.SUM, ReduceOp.SUM, _PLAIN),
            (dist.ReduceOp.AVG, ReduceOp.AVG, _NUMBERS),
            (dist.ReduceOp.PRODUCT, ReduceOp.PROD, _PLAIN),
            (dist.ReduceOp.MIN, ReduceOp.MIN, _PLAIN),
            (dist.ReduceOp.MAX, ReduceOp.MAX, _PLAIN),
            (dist.ReduceOp.BAND, ReduceOp.BAND, _WHOLE),
            (dist.ReduceOp.BOR, ReduceOp.BOR, _WHOLE),
            (dist.ReduceOp.BXOR, ReduceOp.BXOR, _WHOLE),
        )
    }
)
"""The engine's reduction and the element types it takes, by torch's number (hash) of the
ReduceOp.
"""

_ADDITIVE: Final = (ReduceOp.SUM, ReduceOp.AVG)
_PREMUL_SUM: Final = reduction_number(dist.ReduceOp.PREMUL_SUM)


def reduced_as(dtype: torch.dtype, op: Any) -> tuple[DType, int, ReduceOp]:
    """Return the wire type code to reduce `dtype`, its count per tensor element, and the reduction.

    Complex numbers are pairs of floats, so they can be added and averaged. PREMUL_SUM becomes SUM,
    and the caller must multiply the elements. Raises UsageError if `op` cannot reduce `dtype`.
    """
    number = reduction_number(op)
    code, dtypes = REDUCTIONS[0 if number == _PREMUL_SUM else number]
    if dtype in dtypes:
        return dtypes[dtype], 1, code
    if dtype in _PAIRS and code in _ADDITIVE:
        return _PAIRS[dtype], 2, code
    raise UsageError(f"slackline cannot reduce {dtype} with {code.name}")


def moved_as(dtype: torch.dtype) -> tuple[DType, int]:
    """Return the wire type code to copy `dtype`, and the wire elements in one tensor element.

    Types without a code of their own (the 8-bit floats) are copied as bytes. Raises UsageError for
    quantized types.
    """
    if dtype in _PLAIN:
        return _PLAIN[dtype], 1
    if dtype in _PAIRS:
        return _PAIRS[dtype], 2
    if not dtype.is_floating_point:
        raise UsageError(f"slackline cannot move {dtype}")
    return DType.UINT8, dtype.itemsize


def premultiplier(op: Any) -> Any:
    """Return the factor of torch's reduction PREMUL_SUM, a float or a tensor of one element.

    The result is None for any other reduction.
    """
    # Every supported version of torch exposes the factor only in the pickled form.
    return op.__getstate__()[1] if reduction_number(op) == _PREMUL_SUM else None

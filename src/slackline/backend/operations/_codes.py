"""The codes that a frame on the wire carries for torch's element types and reductions."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import distributed as dist

from slackline.backend._torch import reduction_number
from slackline.errors import UsageError
from slackline.wire import DType, ReduceOp

__all__ = ["REDUCTIONS", "moved_as", "premultiplier", "reduced_as"]

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

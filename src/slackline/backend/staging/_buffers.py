"""The host memory of an operation's tensors: a tensor's own memory, or a contiguous copy's.

Copies run on threads that are not in the caller's inference mode. Each copy enters this mode
itself, since only so may it write a tensor that the caller made there. The version counters of all
other tensors still count the write.

The kinds of tensors differ in whether an operation may use their memory as it is:

dense, in order     the engine reads and writes the tensor's own memory
dense, otherwise    a copy: tensors with gaps, or with lazy conjugation or negation
without memory      NeedsDispatcher: wrappers whose values torch's dispatcher knows (subclasses with
                    `__torch_dispatch__`, the wrappers of torch.func)
all others          UsageError: sparse, nested, quantized and meta tensors, DTensors, batches of
                    vmap, and so on

torch keeps a set of dispatch keys for each tensor, from which one look-up tells all kinds apart.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Protocol

import torch

from slackline.errors import UsageError

if TYPE_CHECKING:
    from slackline.backend.staging._device import Device

__all__ = [
    "PIECE_BYTES",
    "Buffers",
    "HostBuffers",
    "NeedsDispatcher",
    "check_distinct",
    "device_of",
    "flat",
    "is_plain",
    "needs_dispatcher",
    "plain_copy",
]


_Key = torch._C.DispatchKey
_Keys = torch._C.DispatchKeySet
_keys_of = torch._C._dispatch_keys

_WRAPPERS = [
    _Key.Python,
    _Key.Functionalize,
    _Key.FuncTorchGradWrapper,
    _Key.FuncTorchBatched,
    _Key.PythonTLSSnapshot,
]


class NeedsDispatcher(Exception):
    """A request to pass an operation through torch's dispatcher, which knows a tensor's values."""


def _keys_of_dense(*devices: str) -> frozenset[int]:
    """Return the dispatch keys of dense tensors, inference tensors included, as numbers."""
    found = []
    for device in devices:
        inference = _Keys(getattr(_Key, device)) | _Keys(getattr(_Key, f"Autocast{device}"))
        autograd = _Keys(_Key.ADInplaceOrView) | _Keys(getattr(_Key, f"Autograd{device}"))
        found += [inference.raw_repr(), (inference | autograd).raw_repr()]
    return frozenset(found)


_DENSE = _keys_of_dense("CPU", "CUDA")
_LAZY = [_Keys(key).raw_repr() for key in (_Key.Conjugate, _Key.Negative)]
_DENSE_LAZY = frozenset(
    keys | changed for keys in _DENSE for changed in (*_LAZY, _LAZY[0] | _LAZY[1])
)


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's memory is exactly its elements in order.

    A tensor with lazy conjugation or negation is not plain. Raises NeedsDispatcher for a wrapper
    around other tensors, and UsageError for a tensor that is not dense.
    """
    keys: int = _keys_of(tensor).raw_repr()
    if keys in _DENSE:
        return tensor.is_contiguous()
    if keys in _DENSE_LAZY:
        return False
    raise _refused(tensor)


def needs_dispatcher(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a wrapper, whose values torch's dispatcher alone knows."""
    keys = _keys_of(tensor)
    return keys.raw_repr() not in _DENSE and any(keys.has(key) for key in _WRAPPERS)


def plain_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy of a tensor, with lazy conjugation and negation applied."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.clone(memory_format=torch.contiguous_format)


def check_distinct(tensor: torch.Tensor) -> None:
    """Raise UsageError if several elements of a tensor that is to be written share memory."""
    end = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride < end:
                break
            end = stride * (size - 1) + end
    else:
        return
    places = _offsets(tensor).flatten().sort().values
    if bool((places[1:] == places[:-1]).any()):
        raise UsageError(
            f"an operation cannot write a tensor of shape {list(tensor.shape)} and strides "
            f"{list(tensor.stride())}, since several of its elements share memory: write to its "
            "clone()"
        )


def _offsets(tensor: torch.Tensor) -> torch.Tensor:
    """Return the place of each element in memory, counted in elements from the first one."""
    place = torch.zeros((), dtype=torch.int64, device="cpu")
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        place = place.unsqueeze(-1) + torch.arange(size, dtype=torch.int64, device="cpu") * stride
    return place


def _is_dtensor(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a DTensor, without an import that takes long."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _refused(tensor: torch.Tensor) -> Exception:
    """Return the error for a tensor that has no dense memory of its own."""
    keys = _keys_of(tensor)
    if keys.has(_Key.FuncTorchBatched):
        return UsageError(
            "slackline takes dense tensors, not one that torch.func.vmap has batched: call the "
            "operation on the whole batch, outside of vmap"
        )
    if _is_dtensor(tensor):
        return UsageError(
            "slackline takes dense tensors, not a DTensor, whose parts lie on several ranks: pass "
            "its part on this rank, `to_local()`, or let DTensor communicate, by `redistribute()`"
        )
    if needs_dispatcher(tensor):
        return NeedsDispatcher()
    if tensor.is_meta:
        what = "a tensor on the device meta, which has no memory"
    elif tensor.layout is not torch.strided:
        what = f"one of layout {tensor.layout}"
    elif tensor.is_nested:
        what = "a nested one: send its buffer, `values()`"
    elif tensor.is_quantized:
        what = "a quantized one: send `int_repr()`"
    elif keys.has(_Key.ZeroTensor):
        what = "torch's placeholder for zeros, which has no memory: send `torch.zeros`"
    else:
        what = f"one with torch's dispatch keys {keys}"
    return UsageError(f"slackline takes dense tensors, not {what}")


PIECE_BYTES = 4 << 20
"""The size in bytes of a piece of a long tensor on a device: enough for copies and transfers at
full rate."""


class Buffers(Protocol):
    """The contiguous host memory of one operation's tensors.

    The caller must keep the object until the operation ends.
    """

    def source(self, tensor: torch.Tensor) -> int:
        """Return the address from which an operation reads the tensor's contiguous elements."""

    def temporary(self, tensor: torch.Tensor) -> int:
        """Return the address of a temporary tensor's elements, and keep the tensor alive."""

    def target(self, tensor: torch.Tensor) -> int:
        """Return the address to which an operation writes the tensor's elements."""

    def in_place(self, tensor: torch.Tensor) -> int:
        """Return the address of a tensor's elements that an operation reads and overwrites."""


class HostBuffers:
    """The memory of an operation's CPU tensors; only non-contiguous tensors are copied."""

    __slots__ = ("_kept", "_results")

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []
        self._results: list[tuple[torch.Tensor, torch.Tensor]] = []

    def source(self, tensor: torch.Tensor) -> int:
        return self._keep(tensor if is_plain(tensor) else plain_copy(tensor))

    def temporary(self, tensor: torch.Tensor) -> int:
        return self._keep(tensor.contiguous())

    def target(self, tensor: torch.Tensor) -> int:
        if is_plain(tensor):
            return self._keep(tensor)
        check_distinct(tensor)
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        return self._beside(tensor, copy)

    def in_place(self, tensor: torch.Tensor) -> int:
        if is_plain(tensor):
            return self._keep(tensor)
        check_distinct(tensor)
        return self._beside(tensor, plain_copy(tensor))

    @property
    def copies_back(self) -> bool:
        """True if `copy_back` has anything to copy."""
        return bool(self._results)

    def copy_back(self) -> None:
        """Copy results to their tensors; to be called once after success, on any thread."""
        with torch.inference_mode():
            for tensor, copy in self._results:
                tensor.copy_(copy)

    def _keep(self, tensor: torch.Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()

    def _beside(self, tensor: torch.Tensor, copy: torch.Tensor) -> int:
        self._results.append((tensor, copy))
        return copy.data_ptr()


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's elements in one dimension: a view if `is_plain`, else a copy."""
    return (tensor.detach() if is_plain(tensor) else plain_copy(tensor)).view(-1)


def check_on(device: torch.device, tensor: torch.Tensor) -> None:
    """Raise UsageError for a tensor on another device than the operation's other tensors."""
    if tensor.device != device:
        raise UsageError(
            f"an operation's tensors must be on one device, not on {device} and {tensor.device}"
        )


def device_of(device: torch.device) -> Device | None:
    """Return the accelerator that stages tensors on `device`; None for the CPU.

    Raises UsageError for a device other than cpu and cuda.
    """
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        raise UsageError(f"slackline takes tensors on cpu and cuda, not on {device}")
    return _cuda_device(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _cuda_device(index: int) -> Device:
    """Return the process's only CudaDevice with this index, which all groups share.

    The copies to the host that are not launched yet (Departures) are counted for all groups
    together.
    """
    from slackline.backend.staging._cuda import (
        CudaDevice,  # A rank without tensors on CUDA needs none.
    )

    return CudaDevice(torch.device("cuda", index))

"""The kinds of torch tensors: whether an operation may use a tensor's memory as it is.

dense, in order     the engine reads and writes the tensor's own memory
dense, otherwise    a copy: tensors with gaps, or with lazy conjugation or negation
without memory      NeedsDispatcher: wrappers whose values torch's dispatcher knows (subclasses with
                    `__torch_dispatch__`, the wrappers of torch.func)
all others          UsageError: sparse, nested, quantized and meta tensors, DTensors, batches of
                    vmap, and so on

torch keeps a set of dispatch keys for each tensor, from which one look-up tells all kinds apart.
"""

import sys

import torch

from slackline.errors import UsageError

__all__ = ["NeedsDispatcher", "check_distinct", "is_plain", "needs_dispatcher", "plain_copy"]

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

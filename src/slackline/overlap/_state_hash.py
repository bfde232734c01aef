"""The hash over all parameters, buffers and optimizer states of a training."""

import ctypes
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["state_hash"]


def state_hash(module: nn.Module, optimizers: Sequence[Optimizer]) -> str:
    """Return the hash of the parameters, the buffers and the optimizers' states, as 32 hex digits.

    The hash is a BLAKE2b of the names and of a BLAKE2b of each tensor's type, shape and bytes, in
    the order of the module and of the optimizers' parameters. It does not depend on the tensors'
    strides and devices.
    """
    total = hashlib.blake2b(digest_size=16)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        _add(total, name, tensor)
    for number, optimizer in enumerate(optimizers):
        for at, parameter in enumerate(_parameters(optimizer)):
            state = optimizer.state.get(parameter, {})
            for key in sorted(state):
                _add(total, f"{number}/{at}/{key}", state[key])
    return total.hexdigest()


def _parameters(optimizer: Optimizer) -> Iterable[Tensor]:
    return (each for group in optimizer.param_groups for each in group["params"])


def _add(total: hashlib.blake2b, name: str, value: Any) -> None:
    if isinstance(value, Tensor):
        kind, digest = f"{value.dtype} {tuple(value.shape)}", _digest(value)
    else:
        kind, digest = repr(value), b""
    total.update(f"{name} {kind};".encode() + digest)


def _digest(tensor: Tensor) -> bytes:
    dense = tensor.detach().to("cpu").contiguous()
    if dense.is_complex():
        dense = torch.view_as_real(dense.resolve_conj())
    nbytes = dense.numel() * dense.element_size()
    digest = hashlib.blake2b(digest_size=16)
    if nbytes:
        digest.update((ctypes.c_char * nbytes).from_address(dense.data_ptr()))
    return digest.digest()

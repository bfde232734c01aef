"""Checks that a model and its optimizers can be wrapped; no check changes the model."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from slackline.errors import UsageError
from slackline.overlap._partial_step import raw_groups
from slackline.overlap.exchange import is_dense, sent_type, wire_type
from slackline.overlap.reduction import LazyGroup, LazyParameters

__all__ = ["check"]


def check(
    module: nn.Module, optimizers: Sequence[Optimizer], communicate: torch.dtype | None = None
) -> dict[int, int]:
    """Check that the model can be wrapped; return the optimizer of each parameter.

    The result maps a parameter's `id` to the index of the optimizer that holds it. `communicate` is
    the type in which fp32 gradients travel; None is their own. Raises
    UsageError, with the name of the module or parameter, for a model that cannot be wrapped.
    """
    if not optimizers:
        raise UsageError("a model must be wrapped together with its optimizer, not with none")
    _check_module(module, communicate)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    holders: dict[int, int] = {}
    for number, optimizer in enumerate(optimizers):
        if any(isinstance(group, LazyGroup) for group in optimizer.param_groups):
            raise UsageError(f"optimizer {number} belongs to another wrapped model already")
        for _, parameters in raw_groups(optimizer):
            for parameter in parameters:
                if id(parameter) not in names:
                    shape = "x".join(map(str, parameter.shape))
                    raise UsageError(
                        f"optimizer {number} holds a parameter ({shape}) that the model lacks"
                    )
                if id(parameter) in holders:
                    raise UsageError(
                        f"parameter {names[id(parameter)]!r} must be in one optimizer, not in two"
                    )
                holders[id(parameter)] = number
    devices = {parameter.device for parameter in module.parameters() if id(parameter) in holders}
    if len(devices) > 1:
        found = ", ".join(sorted(map(str, devices)))
        raise UsageError(f"all parameters must be on one device, not on {found}")
    return holders


def _check_module(module: nn.Module, communicate: torch.dtype | None) -> None:
    for path, child in module.named_modules():
        if isinstance(child.__dict__.get("_parameters"), LazyParameters):
            raise UsageError(f"module {path!r} belongs to another wrapped model already")
        if isinstance(child, nn.Embedding | nn.EmbeddingBag) and child.sparse:
            raise UsageError(f"the gradients of module {path!r} must be dense, not sparse")
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise UsageError(f"parameter {name!r} is lazy; run one forward before wrapping")
        if parameter.is_meta:
            raise UsageError(f"parameter {name!r} is on the meta device and has no values")
        if hasattr(parameter, "placements"):
            raise UsageError(f"parameter {name!r} is a DTensor; ranks must hold it whole")
        if parameter.requires_grad:
            wire_type(parameter.dtype.to_real())
            _check_type(name, parameter.dtype.to_real(), communicate)
            if not is_dense(parameter):
                raise UsageError(
                    f"parameter {name!r} must be dense in memory, not of strides "
                    f"{tuple(parameter.stride())} for shape {tuple(parameter.shape)}"
                )


def _check_type(name: str, dtype: torch.dtype, communicate: torch.dtype | None) -> None:
    """Raise UsageError, with the parameter's name, if its gradient cannot travel."""
    try:
        sent_type(dtype, communicate)
    except UsageError as error:
        raise UsageError(f"parameter {name!r}: {error}") from None

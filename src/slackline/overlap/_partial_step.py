"""The optimizer's own step on some of its parameters, with settings that were saved before.

The step runs on a second object of the optimizer's class. The object shares all attributes with the
optimizer, including the state of each parameter, except `param_groups`, which lists only the wanted
parameters. The optimizer's own code computes the step, so the result is bit-identical to the result
of a plain step.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["Settings", "raw_groups", "settings_of", "partial_step"]

Settings = Sequence[dict[str, Any]]
"""The settings of each parameter group, such as the learning rate, without the parameters."""


def raw_groups(optimizer: Optimizer) -> list[tuple[dict[str, Any], list[Tensor]]]:
    """Return the parameter groups and their parameters without waiting for pending updates."""
    return [(group, dict.__getitem__(group, "params")) for group in optimizer.param_groups]


def settings_of(optimizer: Optimizer) -> Settings:
    """Copy the settings of the parameter groups.

    The copy is needed because a scheduler may change the groups before the step is taken.
    """
    return [
        {
            key: value.detach().clone() if isinstance(value, Tensor) else value
            for key, value in dict.items(group)
            if key != "params"
        }
        for group in optimizer.param_groups
    ]


def partial_step(
    optimizer: Optimizer,
    settings: Settings,
    chosen: Mapping[int, list[Tensor]],
    *,
    state: defaultdict[Tensor, Any] | None = None,
) -> None:
    """Update the parameters in `chosen`, which maps the index of a group to some of its parameters.

    `state` replaces the optimizer's states, so that tensors can be updated that it does not hold.
    The caller's inference mode and autocast are switched off, since the step may run in a forward.
    The step may also run while torch.compile traces code that reads a parameter; torch's optimizers
    compute other bits if they take themselves for traced.
    """
    if not chosen:
        return
    shadow = object.__new__(type(optimizer))
    shadow.__dict__.update(optimizer.__dict__)
    if state is not None:
        shadow.state = state
    shadow.param_groups = [
        {**settings[group], "params": parameters} for group, parameters in sorted(chosen.items())
    ]
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        for device in {parameters[0].device.type for parameters in chosen.values()}:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if torch.compiler.is_compiling():
            stack.enter_context(_not_compiling())
        type(optimizer).step(shadow)


@contextmanager
def _not_compiling() -> Iterator[None]:
    compiler: Any = torch.compiler
    before, compiler._is_compiling_flag = compiler._is_compiling_flag, False
    try:
        yield
    finally:
        compiler._is_compiling_flag = before

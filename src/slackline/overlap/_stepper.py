"""The optimizer's own step, on some of its parameters, with the settings of an earlier moment.

The step runs on a shadow: an object of the optimizer's class that shares everything with it, the
state of each parameter included, but for `param_groups`, which names the wanted parameters only.
What the optimizer computes is its own code's doing, so the result is the plain step's, bit by bit.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["Settings", "raw_groups", "settings_of", "step_some"]

Settings = Sequence[dict[str, Any]]
"""Each group's settings, without its parameters."""


def raw_groups(optimizer: Optimizer) -> list[tuple[dict[str, Any], list[Tensor]]]:
    """The groups and their parameters; reading them through here waits for nothing."""
    return [(group, dict.__getitem__(group, "params")) for group in optimizer.param_groups]


def settings_of(optimizer: Optimizer) -> Settings:
    """A copy: a scheduler that changes the groups later does not change it."""
    return [
        {
            key: value.detach().clone() if isinstance(value, Tensor) else value
            for key, value in dict.items(group)
            if key != "params"
        }
        for group in optimizer.param_groups
    ]


def step_some(optimizer: Optimizer, settings: Settings, chosen: Mapping[int, list[Tensor]]) -> None:
    """Step the parameters in `chosen`, which are sorted by the numbers of their groups.

    The caller's inference mode and autocast do not reach the step: it may run within a forward.
    """
    if not chosen:
        return
    shadow = object.__new__(type(optimizer))
    shadow.__dict__.update(optimizer.__dict__)
    shadow.param_groups = [
        {**settings[group], "params": parameters} for group, parameters in sorted(chosen.items())
    ]
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        for device in {parameters[0].device.type for parameters in chosen.values()}:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        type(optimizer).step(shadow)

"""The conditions of a process's computation: all that is known to change the bits of a training."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from slackline.env import kernel_variables
from slackline.overlap._partial_step import settings_of
from slackline.records import processor_name

__all__ = ["conditions"]

_LIBRARY = re.compile(r"(MKL-DNN|oneDNN|Math Kernel Library).*?(\d+\.\d[\d.]*)")


def conditions(optimizers: Sequence[Optimizer]) -> dict[str, str]:
    """Return the value of each condition by its name."""
    found = {
        "torch": torch.__version__,
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "libraries": ", ".join(map(" ".join, _LIBRARY.findall(torch.__config__.show()))),
        "matmul precision": torch.get_float32_matmul_precision(),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "processor": processor_name(),
    }
    if torch.cuda.is_available():
        backends: Any = torch.backends
        found["device"] = torch.cuda.get_device_name()
        found["CUDA"] = f"{torch.version.cuda}, cuDNN {backends.cudnn.version()}"
    found |= kernel_variables()
    for number, optimizer in enumerate(optimizers):
        found[f"optimizer {number}"] = ", ".join(_described(optimizer))
    return found


def _described(optimizer: Optimizer) -> Iterator[str]:
    """Yield the optimizer's class, then the settings of its first group that are no tensors."""
    yield type(optimizer).__name__
    for settings in settings_of(optimizer)[:1]:
        for name, value in settings.items():
            if not isinstance(value, Tensor):
                yield f"{name}={value!r}"

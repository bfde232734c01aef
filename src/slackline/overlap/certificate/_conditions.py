"""The conditions of a process's computation: all that is known to change the bits of a training."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from slackline.env import kernel_variables
from slackline.overlap._partial_step import settings_of

__all__ = ["conditions", "differences"]

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
        "processor": _processor(),
    }
    if torch.cuda.is_available():
        backends: Any = torch.backends
        found["device"] = torch.cuda.get_device_name()
        found["CUDA"] = f"{torch.version.cuda}, cuDNN {backends.cudnn.version()}"
    found |= kernel_variables()
    for number, optimizer in enumerate(optimizers):
        found[f"optimizer {number}"] = ", ".join(_described(optimizer))
    return found


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return the name and both values of each condition that differs, "-" for a missing value."""
    names = [*one, *(name for name in other if name not in one)]
    values = ((name, one.get(name, "-"), other.get(name, "-")) for name in names)
    return [each for each in values if each[1] != each[2]]


def _processor() -> str:
    """Return the name of the processor's model, empty outside Linux."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else ""


def _described(optimizer: Optimizer) -> Iterator[str]:
    """Yield the optimizer's class, then the settings of its first group that are no tensors."""
    yield type(optimizer).__name__
    for settings in settings_of(optimizer)[:1]:
        for name, value in settings.items():
            if not isinstance(value, Tensor):
                yield f"{name}={value!r}"

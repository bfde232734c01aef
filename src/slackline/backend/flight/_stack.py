"""Call stacks of operations, kept as handles of torch, which its own recorder keeps too."""

from pathlib import Path
from typing import Any

import torch

__all__ = ["call_stack", "callers"]

_HERE = Path(__file__).parent
_OWN = (str(_HERE), str(_HERE.parents[1] / "nic"))


def call_stack() -> Any:
    """Return torch's handle of the caller's stack of Python frames; takes less than 1 us."""
    record: Any = torch._C._profiler
    return record.gather_traceback(True, False, False)


def callers(stack: Any) -> list[dict[str, Any]]:
    """Return a call stack's frames without those of the recorder and of slackline.nic.

    The innermost frame is the first. Each frame has "name", "filename" and "line".
    """
    record: Any = torch._C._profiler
    frames: list[dict[str, Any]] = record.symbolize_tracebacks([stack])[0]
    return [each for each in frames if not each["filename"].startswith(_OWN)]

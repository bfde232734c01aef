"""Each thread's operations that torch's dispatcher has and has not returned yet."""

import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import distributed as dist

from slackline.staging import NeedsDispatcher

__all__ = ["Call", "check_modes", "current"]


@dataclass(slots=True)
class Call:
    """An operation that the dispatcher has and has not yet given back."""

    reduction: Any = None
    """The operation's dist.ReduceOp; None without a reduction."""
    works: list[dist.Work] = field(default_factory=list)
    """The Works of the operations that reached a kernel: one for each part of a wrapper."""


class Current(threading.local):
    """The calling thread's operations within the dispatcher."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        """The operations that the dispatcher has, innermost last."""
        self.kernels = 0
        """The number of kernels that run, which have the operation's real tensors."""
        self.shows = False
        """Whether an operator is called only to be recorded by torch's tools."""


current = Current()


def check_modes() -> None:
    """Raise NeedsDispatcher if a dispatch mode is active that has not seen the operation yet."""
    if torch._C._len_torch_dispatch_stack() and not current.kernels:
        raise NeedsDispatcher

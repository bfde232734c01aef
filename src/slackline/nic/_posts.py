"""The methods of a group that make an operation and post it at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any

from slackline.nic._interface import Prepared, TimedTransfer
from slackline.nic._operation import Operation

__all__ = ["Posts"]


def _posts(make: Callable[..., Operation]) -> Callable[..., Any]:
    """Return a method that posts the operation that `make` returns for the same arguments."""

    @wraps(make)
    def post(
        self: Posts,
        *args: Any,
        timeout: timedelta | None = None,
        blocking: bool = False,
        **named: Any,
    ) -> TimedTransfer:
        return self.post(make(*args, **named), timeout=timeout, blocking=blocking)

    return post


class Posts:
    """The base class of all groups: `group.send(...)` posts `Operation.send(...)`, and so on.

    Each method takes the arguments of the constructor of its name, and those of `Prepared.post`.
    """

    def prepare(self, operation: Operation, /) -> Prepared:
        raise NotImplementedError

    def post(
        self, operation: Operation, *, timeout: timedelta | None = None, blocking: bool = False
    ) -> TimedTransfer:
        return self.prepare(operation).post(timeout=timeout, blocking=blocking)

    all_reduce = _posts(Operation.all_reduce)
    reduce_scatter = _posts(Operation.reduce_scatter)
    all_gather = _posts(Operation.all_gather)
    broadcast = _posts(Operation.broadcast)
    reduce = _posts(Operation.reduce)
    gather = _posts(Operation.gather)
    scatter = _posts(Operation.scatter)
    all_to_all = _posts(Operation.all_to_all)
    barrier = _posts(Operation.barrier)
    send = _posts(Operation.send)
    recv = _posts(Operation.recv)

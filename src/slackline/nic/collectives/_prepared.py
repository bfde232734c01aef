"""Operations with their plan and their engine's arguments, which may be posted many times."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

import slackline._native as _native
from slackline.errors import UsageError
from slackline.nic._interface import Prepared, TimedTransfer
from slackline.nic._operation import Kind, Operation
from slackline.nic.collectives._posting import nanoseconds
from slackline.nic.collectives._transfer import DONE

__all__ = ["PostBuffer", "PostParts", "Posted", "PreparedBuffer", "PreparedParts", "PreparedRun"]

Posted = _native.Request | TimedTransfer | None
"""What the engine returns for a posted operation; None if the operation is done already."""
PostBuffer = Callable[[int, int, int, int, bool], Posted]
"""Posts an operation: its source and target address, priority, limit in ns, blocking or not."""
PostParts = Callable[[int, bool], Posted]
"""Posts an operation with a limit in ns, blocking or not."""


class PreparedRun(Protocol):
    """An operation on one buffer, in the engine's form."""

    @property
    def post(self) -> PostBuffer: ...


class Binder(Protocol):
    """The group of a prepared operation, which chooses the operation's plan when it is posted."""

    @property
    def rank(self) -> int: ...

    @property
    def timeout_ns(self) -> int:
        """The timeout of operations that are posted without a timeout."""

    @property
    def version(self) -> int:
        """A number that changes when prepared operations must choose their plans again."""

    def bind_buffer(self, operation: Operation) -> tuple[PostBuffer, bool]:
        """Return what posts an operation on one buffer, and whether it lasts until `version`."""

    def bind_parts(self, operation: Operation) -> PostParts:
        """Return what posts an operation on parts, or a message."""

    def handle(self, request: _native.Request | TimedTransfer, blocking: bool) -> TimedTransfer:
        """Return the Transfer of a posted operation; if it was blocking, raise its error."""


class PreparedBuffer:
    """A prepared operation on one buffer; slackline.nic.Prepared states the contract."""

    __slots__ = (
        "__weakref__",
        "_group",
        "_post",
        "_priority",
        "_source",
        "_target",
        "_version",
        "_writes",
        "operation",
    )

    def __init__(self, group: Binder, operation: Operation) -> None:
        self._group = group
        self.operation = operation
        (self._source,) = operation.sources
        (self._target,) = operation.targets
        self._writes = operation.kind is not Kind.REDUCE or operation.peer == group.rank
        self._priority = operation.priority
        self._version = -1
        self._post: PostBuffer | None = None

    def post(
        self,
        *,
        at: int | None = None,
        priority: int | None = None,
        timeout: timedelta | None = None,
        blocking: bool = False,
    ) -> TimedTransfer:
        group = self._group
        chosen = self._version  # read before `_post`, which another thread may set meanwhile
        post = self._post
        if post is None or chosen != group.version:
            now = group.version
            post, lasts = group.bind_buffer(self.operation)
            self._post, self._version = (post, now) if lasts else (None, -1)
        limit = group.timeout_ns if timeout is None else nanoseconds(timeout)
        urgency = self._priority if priority is None else priority
        if at is None:
            request = post(self._source, self._target, urgency, limit, blocking)
        else:
            request = post(at, at if self._writes else 0, urgency, limit, blocking)
        return DONE if request is None else group.handle(request, blocking)

    def post_at(self, at: int, timeout: timedelta | None, blocking: bool, /) -> TimedTransfer:
        group, chosen, post = self._group, self._version, self._post
        if post is None or chosen != group.version:
            return self.post(at=at, timeout=timeout, blocking=blocking)
        limit = group.timeout_ns if timeout is None else nanoseconds(timeout)
        request = post(at, at if self._writes else 0, self._priority, limit, blocking)
        return DONE if request is None else group.handle(request, blocking)

    def forget(self) -> None:
        """Let go of the engine's part of the operation, as its group has been closed."""
        self._post = None


class PreparedParts(Prepared):
    """A prepared operation on several parts, or a message; see PreparedBuffer."""

    __slots__ = ("_group", "operation")

    def __init__(self, group: Binder, operation: Operation) -> None:
        self._group = group
        self.operation = operation

    def post(
        self,
        *,
        at: int | None = None,
        priority: int | None = None,
        timeout: timedelta | None = None,
        blocking: bool = False,
    ) -> TimedTransfer:
        group = self._group
        if at is not None:
            raise UsageError(f"{self.operation.kind} has no one buffer to replace", rank=group.rank)
        operation = self.operation
        if priority is not None:
            operation = operation._replace(priority=priority)
        limit = group.timeout_ns if timeout is None else nanoseconds(timeout)
        request = group.bind_parts(operation)(limit, blocking)
        return DONE if request is None else group.handle(request, blocking)

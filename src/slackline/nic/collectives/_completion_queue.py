"""The queue by which one thread waits for the end of any of several operations."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta

import slackline._native as _native
from slackline.errors import ClosedError, SlacklineError, UsageError
from slackline.nic._failures import to_error
from slackline.nic._interface import Completion, Transfer
from slackline.nic.collectives._posting import nanoseconds
from slackline.nic.collectives._transfer import NativeTransfer

__all__ = ["NativeCompletionQueue"]


class NativeCompletionQueue:
    """A completion queue of the native engine; see slackline.nic.CompletionQueue.

    A thread that waits drives the engine itself, so no other thread has to wake up first when an
    operation ends.
    """

    def __init__(self, engine: _native.Engine, pending: set[object]) -> None:
        """Create an empty queue.

        `pending` keeps the queue, and with it the tokens, alive while operations are watched.
        """
        self._queue: _native.CompletionQueue | None = engine.completion_queue()
        self._pending = pending
        self._lock = threading.Lock()
        self._watched: dict[int, tuple[_native.Request, object]] = {}
        self._ended: list[Completion] = []

    def add(self, transfer: Transfer, token: object) -> None:
        if not isinstance(transfer, NativeTransfer):
            if not transfer.done():
                raise UsageError(
                    "a completion queue cannot watch a long all_reduce, which is cut into slices"
                )
            # The operation has ended within the call that posted it.
            self._ended.append(Completion(token, None, time.monotonic_ns()))
            return
        request = transfer.request
        if self._queue is None:
            raise ClosedError("the engine is closed")
        with self._lock:
            self._watched[request.key()] = request, token
            self._pending.add(self)
        self._queue.watch(request)

    def poll(self) -> list[Completion]:
        return self._take(0)

    def wait(self, timeout: timedelta) -> list[Completion]:
        return self._take(0 if self._ended else nanoseconds(timeout))

    def release(self) -> None:
        """Forget the engine, which has been closed; the operations' results stay in the queue."""
        with self._lock:
            keys = [key for key, (request, _) in self._watched.items() if request.done()]
        self._ended += self._completed(keys)
        self._queue = None

    def _take(self, timeout_ns: int) -> list[Completion]:
        found, self._ended = self._ended, []
        if self._queue is not None and (keys := self._queue.wait(timeout_ns)):
            found += self._completed(keys)
        return found

    def _completed(self, keys: Sequence[int]) -> list[Completion]:
        """Remove the operations with these keys from the watched ones; return their completions."""
        with self._lock:
            watched = [self._watched.pop(key) for key in keys]
            if not self._watched:
                self._pending.discard(self)
        return [
            Completion(token, _error_of(request), request.ended_ns()) for request, token in watched
        ]


def _error_of(request: _native.Request) -> SlacklineError | None:
    failure = request.failure()
    return None if failure is None else to_error(failure)

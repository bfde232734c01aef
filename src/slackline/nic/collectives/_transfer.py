"""Handles of posted operations, the thread of their callbacks, and the queue of their completions.

By the queue one thread waits for the end of any of several operations.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import slackline._native as _native
import slackline.errors as errors
from slackline._lazy import record
from slackline.errors import ClosedError, SlacklineError, UsageError
from slackline.nic._interface import Completion, Transfer
from slackline.nic._translation import FailureTuple, nanoseconds, to_error

__all__ = ["DONE", "Completions", "JointTransfer", "NativeCompletionQueue", "NativeTransfer"]


_log = logging.getLogger("slackline.nic")

Callback = Callable[[BaseException | None], None]


class _Done:
    """The shared handle of all operations that succeeded within the call that posted them."""

    __slots__ = ()
    source: int | None = None
    ended_ns = 0

    def done(self) -> bool:
        return True

    def wait(self, timeout: timedelta | None = None) -> None:
        return

    def add_done_callback(self, fn: Callback, /) -> None:
        fn(None)

    def open_at_end(self, word: int, value: int) -> None:
        return


DONE = _Done()


@record(frozen=True, slots=True)
class _Ended:
    """The result of an operation, in place of the record of an engine that has been closed."""

    failed: FailureTuple | None
    sender: int
    at_ns: int

    def done(self) -> bool:
        return True

    def wait(self, timeout_ns: int) -> bool:
        return True

    def cancel(self, failure: FailureTuple) -> None:
        pass

    def failure(self) -> FailureTuple | None:
        return self.failed

    def source(self) -> int:
        return self.sender

    def ended_ns(self) -> int:
        return self.at_ns


class NativeTransfer:
    """The handle of an operation on the native engine; see slackline.nic.Transfer."""

    __slots__ = ("_completions", "_request")

    def __init__(self, request: _native.Request, completions: Completions) -> None:
        self._request: _native.Request | _Ended = request
        self._completions = completions

    @property
    def request(self) -> _native.Request:
        """The engine's record of the operation. Raises ClosedError after `release`."""
        if isinstance(self._request, _Ended):
            raise errors.ClosedError("the engine is closed")
        return self._request

    def release(self) -> None:
        """Replace the engine's record of an ended operation by the operation's result."""
        request = self._request
        if request.done():
            self._request = _Ended(request.failure(), request.source(), request.ended_ns())

    @property
    def source(self) -> int | None:
        rank = self._request.source()
        return None if rank < 0 else rank

    @property
    def ended_ns(self) -> int:
        """The end of the operation by the monotonic clock; 0 while the operation is pending.

        A completion callback may run much later, because it waits for the GIL.
        """
        return self._request.ended_ns()

    def done(self) -> bool:
        return self._request.done()

    def wait(self, timeout: timedelta | None = None) -> None:
        timeout_ns = -1 if timeout is None else nanoseconds(timeout)
        if not self.pause(timeout_ns):
            raise errors.TimeoutError(f"the wait Timed out after {timeout}; the operation goes on")
        if (error := self.error()) is not None:
            raise error

    def pause(self, timeout_ns: int) -> bool:
        """Block until the operation has ended, or for `timeout_ns`; return whether it has ended.

        With a negative `timeout_ns` only the operation's own timeout limits the wait.
        """
        return self._request.wait(timeout_ns)

    def cancel(self, failure: FailureTuple) -> None:
        """Fail the operation on every rank; do nothing if the operation has ended on this rank."""
        self._request.cancel(failure)

    def error(self) -> errors.SlacklineError | None:
        """Return the error of a failed operation; None while it runs and after success."""
        failure = self._request.failure()
        return None if failure is None else to_error(failure)

    def add_done_callback(self, fn: Callback, /) -> None:
        request = self._request
        if isinstance(request, _Ended):
            fn(self.error())
        else:
            self._completions.add(self, request, fn)

    def open_at_end(self, word: int, value: int) -> None:
        if not isinstance(self._request, _Ended):
            self._request.open_at_end([], word, value)


class JointTransfer:
    """The handle of an operation in several parts, which ends when its last part ends.

    The error of the operation is the error of the first part that failed.
    """

    __slots__ = ("_parts",)
    source: int | None = None

    def __init__(self, parts: Sequence[NativeTransfer]) -> None:
        self._parts = parts

    @property
    def ended_ns(self) -> int:
        """The end of the operation by the monotonic clock; 0 while a part is pending."""
        ends = [part.ended_ns for part in self._parts]
        return max(ends) if all(ends) else 0

    def done(self) -> bool:
        return all(part.done() for part in self._parts)

    def wait(self, timeout: timedelta | None = None) -> None:
        limit_ns = None if timeout is None else nanoseconds(timeout)
        until_ns = None if limit_ns is None else time.monotonic_ns() + limit_ns
        # Every part is waited for, also after a failure: the caller's memory is in use until then.
        for part in self._parts:
            left_ns = -1 if until_ns is None else max(0, until_ns - time.monotonic_ns())
            if not part.pause(left_ns):
                raise errors.TimeoutError(
                    f"the wait Timed out after {timeout}; the operation goes on"
                )
        if (error := self.error()) is not None:
            raise error

    def error(self) -> errors.SlacklineError | None:
        """Return the error of the first part that failed; None if no part failed."""
        return next((error for part in self._parts if (error := part.error()) is not None), None)

    def cancel(self, failure: FailureTuple) -> None:
        """Fail every part that has not ended, on every rank."""
        for part in self._parts:
            part.cancel(failure)

    def add_done_callback(self, fn: Callback, /) -> None:
        left = len(self._parts)
        lock = threading.Lock()

        def ended(_: BaseException | None) -> None:
            nonlocal left
            with lock:
                left -= 1
                last = left == 0
            if last:
                fn(self.error())

        for part in self._parts:
            part.add_done_callback(ended)

    def open_at_end(self, word: int, value: int) -> None:
        # Without an engine all parts have ended.
        with contextlib.suppress(ClosedError):
            first, *others = [part.request for part in self._parts]
            first.open_at_end(others, word, value)


class Completions:
    """A thread that runs completion callbacks, started with the first callback.

    With a thread of their own, the engine never waits for Python code, and callbacks never wait
    for the thread that drives the engine.
    """

    def __init__(self, engine: _native.Engine) -> None:
        self._engine: _native.Engine | None = engine
        # The garbage collector may run a finalizer of a Work, which adds a callback, within `add`.
        self._lock = threading.RLock()
        self._watched: dict[int, tuple[NativeTransfer, list[Callback]]] = {}
        self._thread: threading.Thread | None = None
        self.pending_queues: set[object] = set()
        """The completion queues with pending operations, which this set keeps alive."""

    def add(self, transfer: NativeTransfer, request: _native.Request, fn: Callback) -> None:
        """Have `fn(error)` called when `transfer` ends, or at once for an ended transfer."""
        key = request.key()
        new: tuple[NativeTransfer, list[Callback]] = (transfer, [])
        with self._lock:
            self._start()
            found = self._watched.setdefault(key, new)
            found[1].append(fn)
        if found is new and request.watch():
            self._call(key)

    def _start(self) -> None:
        """Start the thread, unless it runs or the engine is closed; called with the lock held."""
        if self._thread is not None or self._engine is None:
            return
        thread = threading.Thread(
            target=self._run, args=(self._engine,), name="slackline-completions", daemon=True
        )
        if self._thread is not None:
            return  # A finalizer, which ran meanwhile, has started one.
        self._thread = thread
        try:
            thread.start()
        except BaseException:
            self._thread = None
            raise

    def join(self) -> None:
        """Wait for the end of the thread, and forget the engine, which must be closed."""
        self._engine = None
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, engine: _native.Engine) -> None:
        while (key := engine.next_completion()) is not None:
            self._call(key)

    def _call(self, key: int) -> None:
        with self._lock:
            entry = self._watched.pop(key, None)
        if entry is None:
            return
        transfer, callbacks = entry
        for callback in callbacks:
            try:
                callback(transfer.error())
            except Exception:
                # No caller could get the error of a callback; the other callbacks must still run.
                _log.exception("a callback of a finished operation failed")


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
        key = request.key()
        with self._lock:
            if not self._watched:
                self._pending.add(self)
            self._watched[key] = request, token
        self._queue.watch(request)

    def poll(self) -> list[Completion]:
        if self._watched or self._ended:
            return self._take(0)
        return []

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

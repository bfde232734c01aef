"""Composed transfers: a set of transfers, a transfer with a continuation, a deferred transfer."""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

from slackline.errors import TimeoutError
from slackline.nic import Transfer

__all__ = ["AllOf", "Callback", "Continuation", "DeferredTransfer"]

Callback = Callable[[BaseException | None], None]


class AllOf:
    """A Transfer that is done when all of `transfers` are.

    If some transfers fail, the error is the error of the first failed transfer in the order of
    `transfers`.
    """

    source: int | None = None

    def __init__(self, transfers: Sequence[Transfer]) -> None:
        self._transfers = tuple(transfers)

    def done(self) -> bool:
        return all(transfer.done() for transfer in self._transfers)

    def wait(self, timeout: timedelta | None = None) -> None:
        if timeout is None:
            for transfer in self._transfers:
                transfer.wait()
            return
        deadline_ns = time.monotonic_ns() + timeout // timedelta(microseconds=1) * 1000
        for transfer in self._transfers:
            left_us = max(0, deadline_ns - time.monotonic_ns()) // 1000
            transfer.wait(timedelta(microseconds=left_us))

    def add_done_callback(self, fn: Callback, /) -> None:
        if not self._transfers:
            fn(None)
            return
        errors: list[BaseException | None] = [None] * len(self._transfers)
        left = len(self._transfers)
        lock = threading.Lock()

        def end(index: int, error: BaseException | None) -> None:
            nonlocal left
            with lock:
                errors[index] = error
                left -= 1
                if left:
                    return
            fn(next((error for error in errors if error is not None), None))

        for index, transfer in enumerate(self._transfers):
            transfer.add_done_callback(partial(end, index))

    def open_at_end(self, word: int, value: int) -> None:
        if len(self._transfers) == 1:
            self._transfers[0].open_at_end(word, value)


class Continuation:
    """A Transfer that runs `follow()` once after `transfer` has succeeded.

    The function runs in the thread of the transfer's callbacks or in a thread that waits, whichever
    is first. An error that `follow` raises becomes the error of this Transfer.
    """

    def __init__(self, transfer: Transfer, follow: Callable[[], None]) -> None:
        self._transfer = transfer
        self._follow = follow
        self._ended = False
        self._error: BaseException | None = None
        self._ending = threading.RLock()
        self._callbacks: list[Callback] = []
        transfer.add_done_callback(self._end)

    @property
    def source(self) -> int | None:
        return self._transfer.source

    def done(self) -> bool:
        return self._ended

    def wait(self, timeout: timedelta | None = None) -> None:
        self._transfer.wait(timeout)
        self._end(None)
        if self._error is not None:
            raise self._error

    def add_done_callback(self, fn: Callback, /) -> None:
        with self._ending:
            if not self._ended:
                self._callbacks.append(fn)
                return
        fn(self._error)

    def open_at_end(self, word: int, value: int) -> None:
        """Do nothing: the results are there when `follow` has run."""

    def _end(self, error: BaseException | None) -> None:
        with self._ending:
            if self._ended:
                return
            if error is None:
                try:
                    self._follow()
                except Exception as failure:  # any error must reach the threads that wait
                    error = failure
            self._error = error
            self._ended = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(error)


class DeferredTransfer:
    """The Transfer of an operation that another thread posts later."""

    def __init__(self) -> None:
        self._posted = threading.Event()
        self._transfer: Transfer | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._callbacks: list[Callback] = []
        self._gates: list[tuple[int, int]] = []

    @property
    def source(self) -> int | None:
        return None if self._transfer is None else self._transfer.source

    def done(self) -> bool:
        if self._transfer is not None:
            return self._transfer.done()
        return self._error is not None

    def wait(self, timeout: timedelta | None = None) -> None:
        begin_ns = time.monotonic_ns()
        if not self._posted.wait(None if timeout is None else timeout.total_seconds()):
            raise TimeoutError(f"the wait Timed out after {timeout}; the operation goes on")
        if self._error is not None:
            raise self._error
        assert self._transfer is not None
        if timeout is not None:
            spent = timedelta(microseconds=(time.monotonic_ns() - begin_ns) // 1000)
            timeout = max(timedelta(), timeout - spent)
        self._transfer.wait(timeout)

    def add_done_callback(self, fn: Callback, /) -> None:
        with self._lock:
            if not self._posted.is_set():
                self._callbacks.append(fn)
                return
        self._pass_on(fn)

    def open_at_end(self, word: int, value: int) -> None:
        with self._lock:
            if not self._posted.is_set():
                self._gates.append((word, value))
                return
        if self._transfer is not None:
            self._transfer.open_at_end(word, value)

    def post(self, posting: Callable[[], Transfer]) -> None:
        """Call `posting`, which posts the operation; an exception becomes the transfer's error."""
        try:
            self._transfer = posting()
        except Exception as error:  # any error must reach the threads that wait
            self._error = error
        with self._lock:
            self._posted.set()
            callbacks, self._callbacks = self._callbacks, []
            gates, self._gates = self._gates, []
        if self._transfer is not None:
            for word, value in gates:
                self._transfer.open_at_end(word, value)
        for callback in callbacks:
            self._pass_on(callback)

    def _pass_on(self, fn: Callback) -> None:
        if self._transfer is not None:
            self._transfer.add_done_callback(fn)
        else:
            fn(self._error)

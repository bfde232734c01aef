"""Transfers composed of others: all of several, and one with a continuation at its end."""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial

from slackline.nic import Transfer

__all__ = ["Several", "Then"]

Callback = Callable[[BaseException | None], None]


class Several:
    """A Transfer that is done when all of `transfers` are.

    If some fail, the error is that of the first failed one in the order of `transfers`.
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


class Then:
    """A Transfer that runs `land()` once after `transfer` has succeeded.

    The function runs in the thread of the transfer's callbacks or in a thread that waits, whichever
    is first. An error that `land` raises becomes the error of this Transfer.
    """

    def __init__(self, transfer: Transfer, land: Callable[[], None]) -> None:
        self._transfer = transfer
        self._land = land
        self._ended = False
        self._error: BaseException | None = None
        self._landing = threading.RLock()
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
        with self._landing:
            if not self._ended:
                self._callbacks.append(fn)
                return
        fn(self._error)

    def _end(self, error: BaseException | None) -> None:
        with self._landing:
            if self._ended:
                return
            if error is None:
                try:
                    self._land()
                except Exception as failure:  # any error must reach the threads that wait
                    error = failure
            self._error = error
            self._ended = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(error)

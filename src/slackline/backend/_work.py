"""What torch gets back from an operation: its Work, and the Future of it."""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import distributed as dist
from torch.futures import Future

from slackline.backend._torch import left_alone_by_compile
from slackline.nic import Transfer

__all__ = ["DoneWork", "EndedWork", "TransferWork"]

_NO_TIMEOUT = timedelta()
_NOTE_ELEMENTS = 16
_IN_CALLBACK = ContextVar("in a future's callback", default=False)


@left_alone_by_compile
class TransferWork(dist.Work):
    """The Work of a posted transfer. It holds the operation's tensors and memory until that is
    done.

    torch's DistributedDataParallel gives the Work of its note to ranks that have no more inputs to
    C++ and drops it in Python. C++ alone does not keep a Python object alive, and waits for ever on
    a Work without one. So a Work of few elements that is dropped unheard goes to `unheard`.
    """

    unheard: deque["TransferWork"] | None = None
    """The last such Works of the group, which keeps them; None: there is no group to do so."""

    def __init__(
        self, transfer: Transfer, results: Sequence[torch.Tensor], kept: Any = None
    ) -> None:
        super().__init__()
        self._transfer = transfer
        self._results = results
        self._kept = kept
        self._future: Future[Any] | None = None
        self._heard = False

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Block until the operation is done; zero means the operation's own timeout.

        Raises the `slackline.errors` type of what went wrong.
        """
        self._heard = True
        self._transfer.wait(timeout or None)
        return True

    def is_completed(self) -> bool:
        return self._transfer.done()

    def is_success(self) -> bool:
        return self._transfer.done() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return what went wrong; None while the operation runs and after success."""
        if self._transfer.done():
            try:
                self._transfer.wait()
            except Exception as error:  # handed over, not hidden
                return error
        return None

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return list(self._results)

    def source_rank(self) -> int:
        """Return the rank that a receive from any source came from."""
        source = self._transfer.source
        return -1 if source is None else source

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> Future[Any]:
        """Return a Future of the list of result tensors. Blocks in a callback of another Future.

        A future carries a failure across C++ as text, so it fails with a RuntimeError that names
        type and message of the error; `wait` raises the error itself.
        """
        self._heard = True
        if self._future is None:
            if _IN_CALLBACK.get():
                # Futures end on one thread, and this is it: a future made here must have ended.
                self._outlast()
            self._future = self._make_future()
        return self._future

    def _make_future(self) -> Future[Any]:
        ended = self._new_future()
        failures: list[BaseException] = []

        def end(error: BaseException | None) -> None:
            if error is not None:
                failures.append(error)
            token = _IN_CALLBACK.set(True)
            try:
                self._complete(ended)
            finally:
                _IN_CALLBACK.reset(token)

        def pass_on(_: Future[Any]) -> list[torch.Tensor]:
            if failures:
                raise failures[0]
            return self.result()

        # Only a callback's error becomes an error in C++; one set from Python would pass for a
        # result there.
        future = ended.then(pass_on)
        if self._transfer.done():
            # C++ reads the value at once where it has waited for the Work, so that this must not
            # wait its turn among the callbacks.
            end(self.exception())
        else:
            self._transfer.add_done_callback(end)
        return future

    def _outlast(self) -> None:
        with suppress(Exception):  # the future will tell
            self._transfer.wait()

    def _new_future(self) -> Future[Any]:
        return Future()

    def _complete(self, future: Future[Any]) -> None:
        future.set_result(None)

    def __del__(self) -> None:
        # Whoever drops the Work of a running operation leaves its memory to the operation.
        if not self._transfer.done():
            held = (self._results, self._kept)
            self._transfer.add_done_callback(partial(_drop, held))
        if self.unheard is None or self._heard:
            return
        if sum(result.numel() for result in self._results) <= _NOTE_ELEMENTS:
            self.unheard.append(self)  # and so it lives on


@left_alone_by_compile
class DoneWork(dist.Work):
    """The Work of an operation that ended well inside the call; one object serves them all."""

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def synchronize(self) -> None:
        pass

    def block_current_stream(self) -> None:
        pass

    def result(self) -> list[torch.Tensor]:
        return []

    def get_future(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result([])
        return future


@left_alone_by_compile
class EndedWork(DoneWork):
    """The Work of an operation that ended well inside the call, with its results."""

    def __init__(self, results: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._results = list(results)

    def result(self) -> list[torch.Tensor]:
        return list(self._results)

    def get_future(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self.result())
        return future


def _drop(held: object, error: BaseException | None) -> None:
    """Has kept what it was bound to until it was called."""

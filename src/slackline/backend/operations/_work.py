"""The objects that an operation returns to torch: a Work, and the Work's Future."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import distributed as dist
from torch.futures import Future

from slackline.backend._torch import excluded_from_compile, held, wait_limit, work_results
from slackline.backend.operations._callbacks import (
    CallbackRun,
    Gates,
    GroupCallbacks,
    Number,
    current,
    track,
    untracked_then,
)
from slackline.backend.staging import AllOf
from slackline.errors import LinkError, PeerError, TimeoutError, UsageError

if TYPE_CHECKING:
    from slackline.backend.staging import StagedTransfer
    from slackline.nic import Transfer

__all__ = ["CoalescedWork", "CompletedWork", "StagedWork", "TransferWork"]

_NO_TIMEOUT = timedelta()
_NOTE_ELEMENTS = 16


@excluded_from_compile
class _PythonWork(dist.Work):
    """The answers that all Works give alike, in place of torch's errors without a type."""

    def boxed(self) -> Any:
        """Return torch's object for operators in C++, which keeps this Work alive."""
        return held(self).boxed()

    def get_future_result(self) -> Future[int]:
        """Return a Future of torch's WorkResult: success, timeout, error of a link, or unknown."""
        outcome = untracked_then(self.get_future(), lambda _: _outcome(self.exception()))
        return cast("Future[int]", outcome)

    def _get_duration(self) -> float:
        raise UsageError(
            "slackline measures no duration of a Work: profile the program with torch.profiler, or "
            "run it with `slackline run --keep` and draw it with `slackline trace`"
        )

    def _get_sequence_number(self) -> int:
        raise UsageError(
            "a Work of slackline has no number: read the group's number, "
            "`_get_sequence_number_for_group`, before the call"
        )

    @property
    def timeout(self) -> timedelta:
        raise UsageError(
            "a Work of slackline does not tell its timeout: it is the one of the call, or the "
            "group's `default_timeout`"
        )

    def block_current_stream(self) -> None:
        self.wait()


@excluded_from_compile
class TransferWork(_PythonWork):
    """The Work of a posted transfer, which keeps the operation's tensors alive until its end.

    torch's DistributedDataParallel announces by a small all_reduce that a rank has more inputs,
    passes the Work to C++, and drops the Work in Python. C++ does not keep the Python object alive,
    and waits for ever on a Work whose Python object is gone. A Work of few elements that Python
    drops before any wait is therefore kept in `callbacks.dropped`.
    """

    end_event: Callable[[], None] | None = None
    """A function that ends the operation's event in torch's profile; None without an event."""
    callbacks: GroupCallbacks | None = None
    """The group's callbacks and dropped Works; None without a group."""
    on_timeout: Callable[[], None] | None = None
    """A function to call when the operation has timed out; None to do nothing."""
    number: Number = None
    """The operation's number in its group; None without a group."""
    _joins = False
    _kept: Any = None
    _future: Future[Any] | None = None
    _awaited = False

    def __init__(
        self, transfer: Transfer, results: Sequence[torch.Tensor], kept: Any = None
    ) -> None:
        super().__init__()
        self._transfer = transfer
        self._results = results
        if kept is not None:
            self._kept = kept

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Block until the operation is done; `timeout` zero means the operation's own timeout.

        Raises the operation's error, of a type of `slackline.errors`.
        """
        self._awaited = True
        try:
            self._transfer.wait(wait_limit(timeout))
        except TimeoutError:
            if self.on_timeout is not None and self._transfer.done():
                self.on_timeout()
            raise
        finally:
            if self.end_event is not None and self._transfer.done():
                self.end_event()
        return True

    def is_completed(self) -> bool:
        return self._transfer.done()

    def is_success(self) -> bool:
        return self._transfer.done() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return the operation's error; None while the operation runs and after success."""
        if self._transfer.done():
            try:
                self._transfer.wait()
            except Exception as error:  # The error is returned, so it is not hidden.
                return error
        return None

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return list(self._results)

    def source_rank(self) -> int:
        """Return the sender of a message that was received from any source; else -1."""
        source = self._transfer.source
        return -1 if source is None else source

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> Future[Any]:
        """Return a Future of the list of result tensors.

        The callbacks of a group's Futures start in the order of the operations. A Future passes an
        error through C++ as text, so it fails with a RuntimeError that names the error's type and
        message; `wait` raises the error itself.
        """
        self._awaited = True
        if self._future is None:
            callback = current()
            if callback is not None and callback.origin is None:
                # All Futures end on this thread, so a Future that is made here would otherwise
                # never end.
                self._outlast()
            self._future = self._make_future()
            if self.callbacks is not None and self.number is not None:
                track(self._future, self.number, self.callbacks, self._gates(), self._joins)
        return self._future

    def _make_future(self) -> Future[Any]:
        ended = self._new_future()
        failures: list[BaseException] = []

        def end(error: BaseException | None) -> None:
            if error is not None:
                failures.append(error)
            # Callbacks that slackline does not know, such as those of collect_all, run within.
            with CallbackRun(None):
                self._complete(ended)

        def pass_on(_: Future[Any]) -> list[torch.Tensor]:
            if failures:
                raise failures[0]
            return self.result()

        # C++ sees an error only if a callback raises it; an exception object that Python sets
        # would be taken for a result.
        future = untracked_then(ended, pass_on)
        if self._transfer.done():
            # After a wait for the Work, C++ reads the value at once, so the Future must be
            # completed here and not later by a callback.
            if (error := self.exception()) is not None:
                failures.append(error)
            self._complete(ended)
        else:
            self._transfer.add_done_callback(end)
        return cast("Future[Any]", future)

    def _outlast(self) -> None:
        with suppress(Exception):  # the Future will raise the error
            self._transfer.wait()

    def _new_future(self) -> Future[Any]:
        return self._gates()[0]()

    def _complete(self, future: Future[Any]) -> None:
        self._gates()[1](future)

    def _gates(self) -> Gates:
        """Return a function that makes Futures, and one that completes them with the results.

        They do not refer to the Work, which refers to its own Future.
        """
        return Future, _complete_empty

    def __del__(self) -> None:
        # A dropped Work's operation may still run, so a callback keeps its memory alive.
        if not self._transfer.done():
            kept = (self._results, self._kept)
            self._transfer.add_done_callback(partial(_drop, kept))
        if self.callbacks is None or self._awaited:
            return
        if sum(result.numel() for result in self._results) <= _NOTE_ELEMENTS:
            self.callbacks.dropped.append(self)  # The reference keeps the Work alive.


@excluded_from_compile
class StagedWork(TransferWork):
    """A TransferWork whose results are copied to an accelerator, in the order of its streams."""

    def __init__(self, transfer: StagedTransfer, results: Sequence[torch.Tensor]) -> None:
        super().__init__(transfer, results)
        self._staged = transfer

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Make the current stream wait for the results; the host does not wait.

        With a `timeout`, first block the host until the data is in host memory. Raises the
        operation's error if the operation has failed already. A later error is raised by the
        group's next operation.
        """
        self._awaited = True
        if timeout:
            self._staged.wait(wait_limit(timeout))
        self._staged.order()
        return True

    def is_completed(self) -> bool:
        """Return whether the operation has ended and its results are in the device's memory."""
        return self._staged.arrived()

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def block_current_stream(self) -> None:
        self._awaited = True
        self._staged.order()

    def _gates(self) -> Gates:
        return self._staged.device.future, partial(_complete, [self._staged], value=self.result())


@excluded_from_compile
class CoalescedWork(TransferWork):
    """The Work of several operations, which may include operations on accelerators."""

    _joins = True

    def __init__(self, works: Sequence[TransferWork]) -> None:
        results = [result for work in works for result in work.result()]
        super().__init__(AllOf([work._transfer for work in works]), results, works)
        if works:
            self.callbacks, self.number = works[0].callbacks, works[0].number
        self._works = works
        self._staged = [work._staged for work in works if isinstance(work, StagedWork)]

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait for each of the Works by the Work's own `wait`."""
        self._awaited = True
        if timeout:
            self._transfer.wait(wait_limit(timeout))
        for work in self._works:
            work.wait()
        if self.end_event is not None:
            self.end_event()
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def _gates(self) -> Gates:
        if not self._staged:
            return Future, _complete_empty
        device = self._staged[0].device
        return device.future, partial(_complete, self._staged, value=self.result())


@excluded_from_compile
class CompletedWork(_PythonWork):
    """The Work of an operation that succeeded within the call, with the operation's results."""

    def __init__(self, results: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()
        self._results = tuple(results)

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

    def result(self) -> list[torch.Tensor]:
        return list(self._results)

    def source_rank(self) -> int:
        return -1

    _source_rank = source_rank

    def get_future(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self.result())
        return future


def _outcome(error: BaseException | None) -> int:
    """Return torch's WorkResult of an operation that ended with `error`, as a number."""
    results = work_results()
    if error is None:
        found = results.SUCCESS
    elif isinstance(error, TimeoutError):
        found = results.TIMEOUT
    elif isinstance(error, (PeerError, LinkError)):
        found = results.COMM_ERROR
    else:
        found = results.UNKNOWN
    return int(found)


def _drop(kept: object, error: BaseException | None) -> None:
    """Do nothing; bound to `kept` as a callback, the function keeps `kept` alive until the call."""


def _complete_empty(future: Future[Any]) -> None:
    """Complete a Future that is only a signal, on a group without accelerators."""
    future.set_result(None)


def _complete(
    transfers: Sequence[StagedTransfer], future: Future[Any], value: list[torch.Tensor]
) -> None:
    """Complete a Future whose readers' streams must wait for the copies of `transfers`.

    A Future records events on the current streams of its value's devices, and the streams of its
    readers wait for these events. So the value must be the tensors.
    """
    events = [event for transfer in transfers for event in transfer.events()]
    with transfers[0].device.completing(events):
        future.set_result(value)

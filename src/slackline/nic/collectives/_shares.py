"""Long all_reduces between hosts, cut into slices; each rank reduces its share of a slice.

A slice is a consecutive part of the tensor. A rank's share is the part of the slice that the rank
reduces; a rank with a faster port gets a larger share. A series consists of all untagged
all_reduces of a group, or of all its all_reduces with one tag; every rank posts them in the same
order. A long operation is cut into slices, each an operation of the engine, and the slices of a
series are numbered:

    slice 0    1    2    3    4          posted, one after the other
          |    '----|----'    |
          '--> exchange of traffic --> shares of slice 3, equal on all ranks

When slice k has ended, the ranks exchange how many bytes their ports have carried. Every rank makes
the same decision from the same figures, and the decision holds for slice k + 3. A slice that is
posted earlier waits in the engine until its shares are known, so that posting never blocks. An
exchange is due after the slice with which the slices since the last exchange have one and a half
times the bytes of a slice of full length; after the others the shares stay.
"""

from __future__ import annotations

import ctypes
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence

import slackline._native as _native
from slackline.errors import ClosedError, SlacklineError
from slackline.nic._interface import TimedTransfer
from slackline.nic._translation import FailureTuple, interrupted, to_error
from slackline.nic.collectives._plans import PlanBook
from slackline.nic.collectives._programs import own_to_each
from slackline.nic.collectives._share_series import Epoch, Exchange, Series, Slice
from slackline.nic.collectives._transfer import DONE, Completions, JointTransfer, NativeTransfer
from slackline.plan.collective import Balance, Collective, Traffic, observe, split
from slackline.wire import DType, ReduceOp

__all__ = ["Sharing", "slice_bytes"]

_log = logging.getLogger("slackline.nic")

_UNTAGGED = -1
_FIRST = -(1 << 30)
"""The priority of the exchanges of traffic counts, which precede all operations of the caller."""
_EXCHANGE, _SLICE = 1, 2
"""The engine's codes for operations of the library itself. Only the first slice of an operation
counts as an operation of the caller, so that the counts stay equal if ranks disagree about its
length."""
_MISMATCH, _CLOSED = 2, 7
"""The codes of slackline::Fault for ranks that disagree and for an engine that has been closed."""


def slice_bytes(rate: float) -> int:
    """Return the length of a slice for ports of this rate in bytes per second.

    The length is the power of two next to 100 ms of the rate, from 2 MiB to 64 MiB.
    """
    return min(max(2 << 20, 1 << round(math.log2(max(1.0, rate / 10)))), 64 << 20)


class SlicedRun:
    """An all_reduce in slices that can be posted many times."""

    def __init__(
        self,
        sharing: Sharing,
        program: _native.Program,
        what: tuple[int, DType, ReduceOp, int, int],
    ) -> None:
        self._sharing, self._program, self._what = sharing, program, what

    def post(
        self, source: int, target: int, priority: int, timeout_ns: int, blocking: bool
    ) -> TimedTransfer:
        run, program = self._sharing.run, self._program
        return run(program, source, target, *self._what, priority, timeout_ns, blocking)


class Sharing:
    """The long all_reduces of one group, cut into slices. Any thread may call the methods."""

    def __init__(
        self,
        engine: _native.Engine,
        native: _native.Group,
        book: PlanBook,
        completions: Completions,
        links: Sequence[int],
        *,
        timeout_ns: int,
    ) -> None:
        """Prepare for long operations; the links must have been timed.

        `links[i]` is the engine's number of the link to rank i, -1 for this rank. `timeout_ns` is
        the limit of an exchange. A slice takes about 100 ms of a port, so that an exchange after
        every other slice costs little. An operation is long if it has at least an eighth of the
        bytes of a slice, and at least 1 MiB.
        """
        self._engine, self._native = engine, native
        self._completions = completions
        self._tell = book.decide
        self._ranks = {link: rank for rank, link in enumerate(links) if link >= 0}
        self._timeout_ns = timeout_ns
        self._slice_bytes = slice_bytes(book.port_rate)
        self.least_bytes = max(1 << 20, self._slice_bytes >> 3)
        self._mesh = book.program(Collective.ALL_REDUCE, "mesh")
        self._gather = book.program(Collective.ALL_GATHER, "mesh")
        self._series: dict[int, Series] = {}
        self._lock = threading.RLock()
        self._ended = threading.Condition(self._lock)
        self._open = 0
        """The number of slices of all_reduces that were posted and have not ended."""
        self._closing = self._closed = False

    def prepare(
        self,
        program: _native.Program,
        count: int,
        dtype: DType,
        op: ReduceOp,
        total: int,
        tag: int,
    ) -> SlicedRun:
        """Prepare to post a program in slices; the arguments are those of `run`."""
        return SlicedRun(self, program, (count, dtype, op, total, tag))

    def run(
        self,
        program: _native.Program,
        source: int,
        target: int,
        count: int,
        dtype: DType,
        op: ReduceOp,
        total: int,
        tag: int,
        priority: int,
        timeout_ns: int,
        blocking: bool,
    ) -> TimedTransfer:
        """Post an all_reduce in slices, with the arguments of the engine's call.

        `program` is the compiled plan of a slice, see `slice_of`. `tag` is -1 without one.
        """
        parts = split(count, -(-total // self._slice_bytes), dtype.itemsize)

        def post(part: Slice, offset: int, size: int, blocking: bool) -> _native.Request | None:
            at = offset * dtype.itemsize
            try:
                return self._native.run(
                    program,
                    source + at,
                    target + at,
                    size,
                    dtype,
                    op,
                    total,
                    tag,
                    priority,
                    timeout_ns,
                    blocking,
                    part.shares,
                    _SLICE if offset else 0,
                )
            except BaseException:  # such as RuntimeError, if the engine has been closed
                self._slice_ended(series, part.number, None)
                raise

        with self._lock:
            if self._closed:
                raise ClosedError("the group is closed", rank=self._native.rank)
            series = self._series.get(tag) or self._begin(program, tag)
            first = self._next(series, parts[0][1] * dtype.itemsize)
            alone = blocking and len(parts) == 1 and not first.measured
            posted = [] if alone else [(first, post(first, *parts[0], False))]
            for offset, size in parts[1:]:
                part = self._next(series, size * dtype.itemsize)
                posted.append((part, post(part, offset, size, False)))
        if alone:
            return self._wait_alone(series, first, post(first, *parts[0], True))
        whole = JointTransfer(
            [NativeTransfer(each, self._completions) for _, each in posted if each is not None]
        )
        for part, each in posted:
            if each is None:
                self._slice_ended(series, part.number, None)
            else:
                then = self._then(series, part.number, each, whole)
                self._completions.add(NativeTransfer(each, self._completions), each, then)
        if blocking:
            try:
                whole.wait()
            except SlacklineError:
                raise
            except BaseException:  # such as KeyboardInterrupt: the caller takes its memory back
                whole.cancel(interrupted(self._native.rank, "all_reduce"))
                raise
        return whole if any(each is not None for _, each in posted) else DONE

    def _wait_alone(
        self, series: Series, part: Slice, request: _native.Request | None
    ) -> TimedTransfer:
        """Wait for the only slice of an all_reduce, and note its end without another thread."""
        number = part.number
        if request is None:
            self._slice_ended(series, number, None)
            return DONE
        transfer = NativeTransfer(request, self._completions)
        try:
            transfer.wait()
        finally:
            if transfer.done():
                self._slice_ended(series, number, request.failure())
            else:  # an exception such as KeyboardInterrupt has ended the wait
                transfer.add_done_callback(
                    lambda error: self._slice_ended(series, number, request.failure())
                )
        return transfer

    def slice_of(self, nbytes: int) -> int:
        """Return the size in bytes of the longest slice of an operation over `nbytes` bytes."""
        return -(-nbytes // -(-nbytes // self._slice_bytes))

    def state(self, tag: int | None = None) -> tuple[tuple[int, ...] | None, str]:
        """Return the ranks' weights in the slice last posted with this tag, and their reason.

        While the weights of that slice are not known, the result is the last decision. The weights
        are None, and the reason is empty, if shares have never changed.
        """
        with self._lock:
            series = self._series.get(_UNTAGGED if tag is None else tag)
            if series is None:
                return None, ""
            last = series.epochs[0]
            if last.decided:
                return last.weights, last.reason
            return series.balance.weights, series.reason

    def close(self, limit_ns: int) -> None:
        """Wait at most `limit_ns` for the end of the posted slices; begin no exchange of traffic.

        Slices that still wait for their shares then fail when the group is closed.
        """
        with self._ended:
            self._closing = True
            self._ended.wait_for(lambda: self._open == 0, limit_ns / 1e9)
            self._closed = True

    def _begin(self, program: _native.Program, tag: int) -> Series:
        """Begin a series of all_reduces; its first slices run the plan of lowest cost."""
        first = Epoch(0, decided=True)
        self._native.set_shares(first.shares, [], 0)
        series = self._series[tag] = Series(
            tag,
            self._native.size,
            self._slice_bytes,
            Balance(mesh=program is self._mesh),
            deque([first]),
            self._counters(),
        )
        return series

    def _next(self, series: Series, nbytes: int) -> Slice:
        """Count one more slice, of `nbytes`, as posted."""
        self._open += 1
        return series.post(nbytes)

    def _then(
        self, series: Series, number: int, request: _native.Request, whole: JointTransfer
    ) -> Callable[[BaseException | None], None]:
        """Return the completion callback of a slice; a failed slice fails the whole all_reduce."""

        def ended(error: BaseException | None) -> None:
            failure = request.failure()
            if failure is not None:
                whole.cancel(failure)
            self._slice_ended(series, number, failure)

        return ended

    def _slice_ended(self, series: Series, number: int, failure: FailureTuple | None) -> None:
        """Begin the exchanges of the ranks' traffic counts that are due, in the order of slices.

        A slice is the part of an all_reduce that is posted as one operation. The counts are
        exchanged after a failed slice too. After a mismatch the ranks may have cut an operation
        into different numbers of slices, so the series cannot go on.
        """
        with self._lock:
            series.ended.add(number)
            self._open -= 1
            if self._closing:
                self._ended.notify_all()
            if failure is not None and failure[0] == _MISMATCH and series.failure is None:
                self._fail(series, failure)
            while series.noted in series.ended:
                series.ended.remove(series.noted)
                series.noted += 1
                if self._closed or series.failure is not None:
                    continue
                if series.due and series.due[0].number < series.noted:
                    try:
                        self._exchange(series, series.due.popleft())
                    except RuntimeError as error:  # the engine has been closed
                        self._fail(series, (_CLOSED, str(error), self._native.rank, -1, -1, -1))

    def _exchange(self, series: Series, exchange: Exchange) -> None:
        """Tell the other ranks the bytes that the links have carried since the last exchange."""
        ranks = self._native.size
        row = 2 * ranks
        series.running.append(exchange)
        now = self._counters()
        mine = (ctypes.c_int64 * row)()
        for link, rank in self._ranks.items():
            nbytes, busy_ns = now.get(link, (0, 0))
            before = series.seen.get(link, (0, 0))
            if nbytes < before[0] or busy_ns < before[1]:  # a new connection counts from 0
                before = 0, 0
            mine[2 * rank], mine[2 * rank + 1] = nbytes - before[0], busy_ns - before[1]
        series.seen = now
        at = ctypes.addressof(exchange.memory)
        ctypes.memmove(at + 8 * row * self._native.rank, mine, 8 * row)
        targets = [at + 8 * row * rank for rank in range(ranks)]
        request = self._native.run_chunks(
            self._gather,
            own_to_each(self._native.rank, targets[self._native.rank], targets, [row] * ranks),
            DType.INT64,
            ReduceOp.NONE,
            8 * row * ranks,
            series.tag,
            _FIRST,
            self._timeout_ns,
            False,
            _EXCHANGE,
        )
        if request is None:
            self._exchange_ended(series, exchange, None)
            return
        NativeTransfer(request, self._completions).add_done_callback(
            lambda error: self._exchange_ended(series, exchange, request.failure())
        )

    def _exchange_ended(
        self, series: Series, exchange: Exchange, failure: FailureTuple | None
    ) -> None:
        """Compute new shares from the finished exchanges of traffic counts, in order of slices."""
        with self._lock:
            exchange.ended, exchange.failure = True, failure
            while series.running and series.running[0].ended and series.failure is None:
                first = series.running[0]
                if first.failure is None:
                    self._decide(series, series.running.popleft())
                else:
                    self._fail(series, first.failure)

    def _decide(self, series: Series, exchange: Exchange) -> None:
        """Decide the shares of an epoch from the traffic counts that the ranks have exchanged."""
        epoch = exchange.epoch
        series.balance, reason = observe(
            series.balance, self._table(exchange.memory), 2 * self._slice_bytes
        )
        weights = series.balance.weights
        if reason is not None:
            where = "" if series.tag == _UNTAGGED else f" with tag {series.tag}"
            _log.info("all_reduce%s, from slice %d on: %s", where, epoch.first, reason)
            series.reason = reason
            if self._tell is not None:
                made = (
                    "equal shares" if weights is None else f"shares {', '.join(map(str, weights))}"
                )
                given = f"{made} of all_reduce{where}, from slice {epoch.first} on"
                self._tell("shares", given, reason)
        epoch.decided, epoch.weights, epoch.reason = True, weights, series.reason
        self._native.set_shares(
            epoch.shares,
            list(weights or ()),
            series.balance.number,
            None if weights is None else self._mesh,
        )

    def _fail(self, series: Series, failure: FailureTuple) -> None:
        """Fail every slice of the series without decided shares, and all that are posted later."""
        fault, message, rank, peer, tag, sequence = failure
        message = f"the ranks could not agree on the shares of an all_reduce: {message}"
        failure = fault, message, rank, peer, tag, sequence
        _log.debug("%s", to_error(failure))
        for epoch in series.fail(failure):
            self._native.decline(epoch.shares, failure)

    def _table(self, memory: ctypes.Array[ctypes.c_int64]) -> list[list[Traffic]]:
        """Return the exchanged traffic: row i has the traffic from rank i to each rank."""
        ranks = self._native.size
        links = list(map(Traffic, memory[::2], memory[1::2]))
        return [links[at : at + ranks] for at in range(0, ranks * ranks, ranks)]

    def _counters(self) -> dict[int, tuple[int, int]]:
        """Return (bytes sent, busy nanoseconds) of each link of the group so far.

        The rails of a link work at the same time, so the busiest rail counts.
        """
        counted: dict[int, tuple[int, int]] = {}
        for status in self._engine.rails():
            if status.link in self._ranks:
                nbytes, busy_ns = counted.get(status.link, (0, 0))
                counted[status.link] = nbytes + status.bytes_sent, max(busy_ns, status.busy_ns)
        return counted

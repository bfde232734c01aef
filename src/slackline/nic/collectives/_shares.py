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
from collections.abc import Callable, Sequence

import slackline._native as _native
from slackline.errors import ClosedError
from slackline.health import Balance, Traffic, observe
from slackline.nic._failures import FailureTuple, to_error
from slackline.nic._interface import TimedTransfer
from slackline.nic.collectives._chunks import own_to_each
from slackline.nic.collectives._plans import PlanBook
from slackline.nic.collectives._share_series import AHEAD, Exchange, Series
from slackline.nic.collectives._transfer import DONE, Completions, JointTransfer, NativeTransfer
from slackline.plan.collective import Collective, split
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
        self._closed = False

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
        requests = []
        with self._lock:
            if self._closed:
                raise ClosedError("the group is closed", rank=self._native.rank)
            series = self._series.get(tag)
            if series is None:
                series = self._series[tag] = self._begin(program)
            for offset, size in parts:
                at = offset * dtype.itemsize
                number = series.posted
                request = self._native.run(
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
                    False,
                    self._shares(series, number),
                    _SLICE if offset else 0,
                )
                series.posted += 1
                series.unmeasured_bytes += size * dtype.itemsize
                if 2 * series.unmeasured_bytes >= 3 * self._slice_bytes:
                    series.due.add(number)
                    series.unmeasured_bytes = 0
                self._open += 1
                self._drop_used(series, number)
                requests.append((number, request))
        waiting = [
            NativeTransfer(request, self._completions)
            for _, request in requests
            if request is not None
        ]
        if blocking and len(waiting) == 1 == len(requests):
            return self._wait_alone(tag, requests[0][0], waiting[0])
        whole = JointTransfer(waiting)
        for number, request in requests:
            if request is None:
                self._slice_ended(tag, number, None)
            else:
                transfer = NativeTransfer(request, self._completions)
                transfer.add_done_callback(self._then(tag, number, request, whole))
        if blocking:
            whole.wait()
        return whole if waiting else DONE

    def _wait_alone(self, tag: int, number: int, transfer: NativeTransfer) -> TimedTransfer:
        """Wait for the only slice of an all_reduce, and note its end without another thread."""
        try:
            transfer.wait()
        finally:
            if transfer.done():
                self._slice_ended(tag, number, transfer.request.failure())
            else:  # an exception such as KeyboardInterrupt has ended the wait
                request = transfer.request
                transfer.add_done_callback(
                    lambda error: self._slice_ended(tag, number, request.failure())
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
            known = series.balance.weights, series.reason
            return series.chosen.get(series.posted - 1, known)

    def close(self, limit_ns: int) -> None:
        """Wait at most `limit_ns` for the end of the posted slices; begin no exchange of traffic.

        Slices that still wait for their shares then fail when the group is closed.
        """
        with self._ended:
            self._ended.wait_for(lambda: self._open == 0, limit_ns / 1e9)
            self._closed = True

    def _begin(self, program: _native.Program) -> Series:
        """Return a new series of all_reduces; its first slices run the plan of lowest cost."""
        series = Series(Balance(mesh=program is self._mesh), seen=self._counters())
        for number in range(AHEAD):
            series.chosen[number] = None, ""
            self._native.set_shares(self._shares(series, number), [], 0)
        return series

    def _shares(self, series: Series, number: int) -> _native.Shares:
        """Return the object that holds a slice's shares, or receives the shares once decided."""
        if number not in series.shares:
            series.shares[number] = _native.Shares()
            if series.failure is not None and number >= series.decided + AHEAD:
                self._native.decline(series.shares[number], series.failure)
        return series.shares[number]

    def _drop_used(self, series: Series, number: int) -> None:
        """Forget the shares of a slice that has been posted and decided."""
        series.chosen.pop(series.posted - 2, None)
        if number < series.posted and number < series.decided + AHEAD:
            series.shares.pop(number, None)

    def _then(
        self, tag: int, number: int, request: _native.Request, whole: JointTransfer
    ) -> Callable[[BaseException | None], None]:
        """Return the completion callback of a slice; a failed slice fails the whole all_reduce."""

        def ended(error: BaseException | None) -> None:
            failure = request.failure()
            if failure is not None:
                whole.cancel(failure)
            self._slice_ended(tag, number, failure)

        return ended

    def _slice_ended(self, tag: int, number: int, failure: FailureTuple | None) -> None:
        """Begin the exchanges of the ranks' traffic counts that are due, in the order of slices.

        A slice is the part of an all_reduce that is posted as one operation. The counts are
        exchanged after a failed slice too. After a mismatch the ranks may have cut an operation
        into different numbers of slices, so the series cannot go on.
        """
        with self._lock:
            series = self._series[tag]
            series.ended.add(number)
            self._open -= 1
            self._ended.notify_all()
            if failure is not None and failure[0] == _MISMATCH and series.failure is None:
                self._fail(series, failure)
            while series.exchanged in series.ended:
                series.ended.remove(series.exchanged)
                series.exchanged += 1
                if self._closed or series.failure is not None:
                    continue
                number = series.exchanged - 1
                try:
                    if number in series.due:
                        series.due.remove(number)
                        self._exchange(tag, series, number)
                    else:
                        series.exchanges[number] = Exchange(None, ended=True)
                except RuntimeError as error:  # the engine has been closed
                    self._fail(series, (_CLOSED, str(error), self._native.rank, -1, -1, -1))
            self._decide_all(tag, series)

    def _exchange(self, tag: int, series: Series, number: int) -> None:
        """Tell the other ranks the bytes that the links have carried since the last exchange."""
        ranks = self._native.size
        row = 2 * ranks
        memory = (ctypes.c_int64 * (row * ranks))()
        series.exchanges[number] = Exchange(memory, ended=False)
        now = self._counters()
        mine = (ctypes.c_int64 * row)()
        for link, rank in self._ranks.items():
            nbytes, busy_ns = now.get(link, (0, 0))
            before = series.seen.get(link, (0, 0))
            if nbytes < before[0] or busy_ns < before[1]:  # a new connection counts from 0
                before = 0, 0
            mine[2 * rank], mine[2 * rank + 1] = nbytes - before[0], busy_ns - before[1]
        series.seen = now
        at = ctypes.addressof(memory)
        ctypes.memmove(at + 8 * row * self._native.rank, mine, 8 * row)
        targets = [at + 8 * row * rank for rank in range(ranks)]
        request = self._native.run_chunks(
            self._gather,
            own_to_each(self._native.rank, targets[self._native.rank], targets, [row] * ranks),
            DType.INT64,
            ReduceOp.NONE,
            8 * row * ranks,
            tag,
            _FIRST,
            self._timeout_ns,
            False,
            _EXCHANGE,
        )
        if request is None:
            self._exchange_ended(tag, number, None)
            return
        NativeTransfer(request, self._completions).add_done_callback(
            lambda error: self._exchange_ended(tag, number, request.failure())
        )

    def _exchange_ended(self, tag: int, number: int, failure: FailureTuple | None) -> None:
        """Compute new shares from the finished exchanges of traffic counts, in order of slices."""
        with self._lock:
            series = self._series[tag]
            series.exchanges[number].ended = True
            series.exchanges[number].failure = failure
            self._decide_all(tag, series)

    def _decide_all(self, tag: int, series: Series) -> None:
        """Decide the shares after each slice that has ended, and whose exchange has, in order."""
        while (first := series.exchanges.get(series.decided)) is not None and first.ended:
            del series.exchanges[series.decided]
            self._decide(tag, series, first)

    def _decide(self, tag: int, series: Series, exchange: Exchange) -> None:
        """Decide the shares of slice k + 3 from the traffic counts exchanged after slice k."""
        number = series.decided + AHEAD
        if series.failure is not None:
            return
        if exchange.failure is not None:
            self._fail(series, exchange.failure)
            return
        shares = self._shares(series, number)
        reason = None
        if exchange.memory is not None:
            series.balance, reason = observe(
                series.balance, self._table(exchange.memory), 2 * self._slice_bytes
            )
        if reason is not None:
            where = "" if tag == _UNTAGGED else f" with tag {tag}"
            _log.info("all_reduce%s, from slice %d on: %s", where, number, reason)
            series.reason = reason
            if self._tell is not None:
                given = series.balance.weights
                made = "equal shares" if given is None else f"shares {', '.join(map(str, given))}"
                self._tell("shares", f"{made} of all_reduce{where}, from slice {number} on", reason)
        weights = series.balance.weights
        if number >= series.posted - 1:
            series.chosen[number] = weights, series.reason
        self._native.set_shares(
            shares,
            list(weights or ()),
            series.balance.number,
            None if weights is None else self._mesh,
        )
        series.decided += 1
        self._drop_used(series, number)

    def _fail(self, series: Series, failure: FailureTuple) -> None:
        """Fail every slice of the series without decided shares, whether posted now or later."""
        fault, message, rank, peer, tag, sequence = failure
        message = f"the ranks could not agree on the shares of an all_reduce: {message}"
        series.failure = fault, message, rank, peer, tag, sequence
        _log.debug("%s", to_error(series.failure))
        for number, shares in series.shares.items():
            if number >= series.decided + AHEAD:
                self._native.decline(shares, series.failure)

    def _table(self, memory: ctypes.Array[ctypes.c_int64]) -> list[list[Traffic]]:
        """Return the exchanged traffic: row i has the traffic from rank i to each rank."""
        ranks = self._native.size
        told = list(memory)
        return [
            [
                Traffic(nbytes=told[at], busy_ns=told[at + 1])
                for at in range(2 * ranks * rank, 2 * ranks * (rank + 1), 2)
            ]
            for rank in range(ranks)
        ]

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

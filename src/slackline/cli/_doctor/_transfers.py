"""Bandwidth and latency between any two ranks, measured with the engine's own messages.

Pairs of ranks take turns, so that no measurement disturbs another. In each pair the lower rank
leads and measures. The leader announces each series in a message of two numbers: the kind of series
and its length. Series grow until the time of the pair's turn is used.
"""

import ctypes
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from slackline.wire import DType

if TYPE_CHECKING:
    from slackline.nic import Group

__all__ = ["Measured", "measure"]

_MESSAGE = 1 << 20
_MOST = 256
"""The most messages in one series; all of them are posted at once."""

_PINGS = 16
_MOST_PINGS = 1 << 14
_TAG = 1 << 20
_END, _PING, _THERE, _HERE = range(4)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measured bandwidth and latency of one direction between two ranks."""

    source: int
    target: int
    bytes_per_second: float
    latency_ns: int
    """Half of the median round trip of a message of eight bytes."""

    def as_json(self) -> dict[str, float]:
        """Return the fields by name."""
        return asdict(self)


def measure(
    group: "Group", budget_ns: int, clock: Callable[[], int] = time.perf_counter_ns
) -> list[Measured]:
    """Return bandwidth and latency in both directions, for each pair that this rank leads.

    All ranks of the group call this function together. Each call blocks for about `budget_ns`.
    """
    pairs = [(a, b) for a in range(group.size) for b in range(a + 1, group.size)]
    turn_ns = budget_ns // max(1, 3 * len(pairs))
    memory = group.allocate(_MESSAGE)
    found: list[Measured] = []
    try:
        for leader, follower in pairs:
            if group.rank == leader:
                found += _Leader(group, follower, memory, turn_ns, clock).measure()
            elif group.rank == follower:
                _follow(group, leader, memory)
            _meet(group)
    finally:
        group.free(memory)
    return found


class _Leader:
    def __init__(
        self, group: "Group", peer: int, memory: int, turn_ns: int, clock: Callable[[], int]
    ) -> None:
        self._group = group
        self._peer = peer
        self._memory = memory
        self._turn_ns = turn_ns
        self._clock = clock

    def measure(self) -> list[Measured]:
        """Return the bandwidth and latency of both directions between this rank and its peer."""
        latency_ns = self._latency() // 2
        rates = [self._rate(what, latency_ns) for what in (_THERE, _HERE)]
        _tell(self._group, self._peer, _END, 0)
        ends = [(self._group.rank, self._peer), (self._peer, self._group.rank)]
        return [
            Measured(source=source, target=target, bytes_per_second=rate, latency_ns=latency_ns)
            for (source, target), rate in zip(ends, rates, strict=True)
        ]

    def _latency(self) -> int:
        """Return the median round trip, in nanoseconds, of the last and longest series."""
        count = _PINGS
        while True:
            _tell(self._group, self._peer, _PING, count)
            trips = []
            begin = self._clock()
            for _ in range(count):
                sent = self._clock()
                _send(self._group, self._memory, 8, self._peer)
                _receive(self._group, self._memory, 8, self._peer)
                trips.append(self._clock() - sent)
            if self._clock() - begin >= self._turn_ns / 2 or count >= _MOST_PINGS:
                return sorted(trips)[count // 2]
            count *= 2

    def _rate(self, what: int, latency_ns: int) -> float:
        """Return the best bandwidth among series of growing length, in bytes per second.

        `what` is the direction: _THERE from this rank to its peer, _HERE back.
        """
        count, best = 1, 0.0
        deadline = self._clock() + self._turn_ns
        while True:
            begin = self._clock()
            _tell(self._group, self._peer, what, count)
            _many(self._group, self._memory, count, self._peer, receives=what == _HERE)
            if what == _THERE:
                _receive(self._group, self._memory, 8, self._peer)
            now = self._clock()
            # The time of a series includes two latencies besides the bytes: one of the
            # announcement, and one of the confirmation or of the first message back.
            best = max(best, count * _MESSAGE * 1e9 / max(1, now - begin - 2 * latency_ns))
            if now >= deadline:
                return best
            count = min(_MOST, 2 * count)


def _follow(group: "Group", leader: int, memory: int) -> None:
    while True:
        what, count = _hear(group, leader)
        if what == _END:
            return
        if what == _PING:
            for _ in range(count):
                _receive(group, memory, 8, leader)
                _send(group, memory, 8, leader)
            continue
        _many(group, memory, count, leader, receives=what == _THERE)
        if what == _THERE:
            _send(group, memory, 8, leader)


def _tell(group: "Group", peer: int, what: int, count: int) -> None:
    words = (ctypes.c_int64 * 2)(what, count)
    _send(group, ctypes.addressof(words), 16, peer, _TAG)


def _hear(group: "Group", peer: int) -> tuple[int, int]:
    words = (ctypes.c_int64 * 2)()
    _receive(group, ctypes.addressof(words), 16, peer, _TAG)
    return words[0], words[1]


# The engine is loaded by the ranks that measure, and not by `slackline --help`.
def _meet(group: "Group") -> None:
    from slackline.nic import Operation

    group.post(Operation.barrier(), blocking=True)


def _send(group: "Group", memory: int, nbytes: int, peer: int, tag: int = _TAG + 1) -> None:
    from slackline.nic import Operation

    group.post(Operation.send(memory, nbytes, DType.UINT8, peer, tag), blocking=True)


def _receive(group: "Group", memory: int, nbytes: int, peer: int, tag: int = _TAG + 1) -> None:
    from slackline.nic import Operation

    group.post(Operation.recv(memory, nbytes, DType.UINT8, peer, tag), blocking=True)


def _many(group: "Group", memory: int, count: int, peer: int, *, receives: bool) -> None:
    from slackline.nic import Operation

    make = Operation.recv if receives else Operation.send
    prepared = group.prepare(make(memory, _MESSAGE, DType.UINT8, peer, _TAG + 2))
    posted = [prepared.post() for _ in range(count)]
    for transfer in posted:
        transfer.wait()

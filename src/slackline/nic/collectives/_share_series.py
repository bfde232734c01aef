"""The state of a series of long all_reduces that are cut into slices; see `_shares`."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import slackline._native as _native
from slackline.health import Balance, Traffic
from slackline.nic._failures import FailureTuple

__all__ = ["AHEAD", "Exchange", "Series", "link_counters", "next_interval", "traffic_table"]

AHEAD = 3
"""The number of slices between a measured slice and the slice whose shares use the measurement.

The exchange takes some milliseconds, in which the slices in between keep the ports busy.
"""
_EXCHANGE_PS = 150 * 10**9
"""The time from one exchange of traffic counts to the next, in picoseconds.

A slice of full length takes 100 to 200 ms, so that its traffic is exchanged at once. An exchange
costs one or two milliseconds where the ranks share busy processors.
"""


@dataclass(slots=True)
class Exchange:
    """The exchange of traffic counts after one slice: the figures of all ranks, and the result."""

    memory: ctypes.Array[ctypes.c_int64] | None
    """Two figures for each pair of ranks; None if no exchange was due after this slice."""
    ended: bool
    failure: FailureTuple | None = None


@dataclass(slots=True)
class Series:
    """The state of one series of long all_reduces; its counts are equal on all ranks."""

    balance: Balance
    interval: int
    """The bytes of all_reduces from one exchange of traffic counts to the next, as last decided."""
    reason: str = ""
    posted: int = 0
    exchanged: int = 0
    """The number of slices whose end has been noted, and the exchange begun if one was due."""
    decided: int = 0
    """The number of slices after which the shares have been decided."""
    unmeasured_bytes: int = 0
    """The bytes of the slices that have ended since the last exchange of traffic counts."""
    sizes: deque[int] = field(default_factory=deque)
    """The bytes of each posted slice whose end has not been noted, in order."""
    intervals: dict[int, int] = field(default_factory=dict)
    """The interval in bytes that holds at the end of each coming slice, as far as decided."""
    ended: set[int] = field(default_factory=set)
    """The numbers of ended slices that wait for the end of an earlier slice."""
    exchanges: dict[int, Exchange] = field(default_factory=dict)
    shares: dict[int, _native.Shares] = field(default_factory=dict)
    """The shares of each slice that is either posted or decided, but not both."""
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The bytes and busy time of each link, as counted at the last exchange."""
    chosen: dict[int, tuple[tuple[int, ...] | None, str]] = field(default_factory=dict)
    """The known weights, with the reason, of the last posted slice and of each later slice."""
    failure: FailureTuple | None = None

    def end_next(self) -> bool:
        """Note the end of the next slice, and return whether an exchange is due after this slice.

        An exchange is due at the end that is nearest to the end of the interval.
        """
        self.ended.remove(self.exchanged)
        interval = self.intervals.pop(self.exchanged)
        self.exchanged += 1
        nbytes = self.sizes.popleft()
        self.unmeasured_bytes += nbytes
        if 2 * self.unmeasured_bytes + nbytes < 2 * interval:
            return False
        self.unmeasured_bytes = 0
        return True


def next_interval(interval: int, pace: int | None) -> int:
    """Return the bytes of all_reduces after which the next exchange of traffic counts is due.

    `interval` is the present number of bytes, and `pace` the measured time for each byte in
    picoseconds, None if unknown. Traffic of a moment can show a false pace, so an interval is at
    most twice and at least half as long as the one before.
    """
    if not pace:
        return interval
    return min(max(_EXCHANGE_PS // pace, interval // 2, 1), 2 * interval)


def link_counters(engine: _native.Engine, ranks: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """Return (bytes sent, busy nanoseconds) so far of each link, a key of `ranks`.

    The rails of a link work at the same time, so the busiest rail counts.
    """
    counted: dict[int, tuple[int, int]] = {}
    for status in engine.rails():
        if status.link in ranks:
            nbytes, busy_ns = counted.get(status.link, (0, 0))
            counted[status.link] = nbytes + status.bytes_sent, max(busy_ns, status.busy_ns)
    return counted


def traffic_table(memory: ctypes.Array[ctypes.c_int64], ranks: int) -> list[list[Traffic]]:
    """Return the exchanged traffic: row i has the traffic from rank i to each rank."""
    told = list(memory)
    return [
        [
            Traffic(nbytes=told[at], busy_ns=told[at + 1])
            for at in range(2 * ranks * rank, 2 * ranks * (rank + 1), 2)
        ]
        for rank in range(ranks)
    ]

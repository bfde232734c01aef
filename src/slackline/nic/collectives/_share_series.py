"""The state of a series of long all_reduces that are cut into slices; see `_shares`."""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass, field

import slackline._native as _native
from slackline.nic._translation import FailureTuple
from slackline.plan.collective import Balance

__all__ = ["Epoch", "Exchange", "Series", "Slice"]

AHEAD = 3
"""The number of slices between a measured slice and the slice whose shares use the measurement.

The exchange takes some milliseconds, in which the slices in between keep the ports busy.
"""


@dataclass(slots=True)
class Epoch:
    """Consecutive slices of a series that have equal shares, from one decision to the next."""

    first: int
    """The number of the first slice; the last slice precedes the first slice of the next epoch."""
    shares: _native.Shares = field(default_factory=_native.Shares)
    decided: bool = False
    weights: tuple[int, ...] | None = None
    """The weights of the ranks once decided; None for the plan that was chosen by its cost."""
    reason: str = ""


@dataclass(slots=True)
class Exchange:
    """An exchange of traffic counts, which decides the shares of one epoch."""

    number: int
    """The number of the slice whose end begins the exchange."""
    epoch: Epoch
    memory: ctypes.Array[ctypes.c_int64]
    """Two figures for each pair of ranks, all 0 before the exchange."""
    ended: bool = False
    failure: FailureTuple | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice to be posted."""

    number: int
    shares: _native.Shares
    measured: bool
    """Whether an exchange is due after the slice."""


@dataclass(slots=True)
class Series:
    """The state of one series of long all_reduces; its counts are equal on all ranks."""

    tag: int
    """The tag of the all_reduces; -1 without one."""
    ranks: int
    slice_bytes: int
    """The full length of a slice."""
    balance: Balance
    epochs: deque[Epoch]
    """The epoch of the slice last posted, and the later epochs whose first slice is known."""
    seen: dict[int, tuple[int, int]]
    """The bytes and busy time of each link, as counted at the last exchange."""
    reason: str = ""
    posted: int = 0
    noted: int = 0
    """The number of slices that have ended, as have all slices before them."""
    unmeasured_bytes: int = 0
    """The bytes of the slices posted since the last one after which an exchange is due."""
    ended: set[int] = field(default_factory=set)
    """The numbers of ended slices that wait for the end of an earlier slice."""
    due: deque[Exchange] = field(default_factory=deque)
    """The exchanges that wait for the end of their slice, in order."""
    running: deque[Exchange] = field(default_factory=deque)
    """The exchanges that have begun and have not yet decided the shares of their epoch."""
    failure: FailureTuple | None = None

    def post(self, nbytes: int) -> Slice:
        """Count a slice of `nbytes` as posted, and return what to post."""
        number, epochs = self.posted, self.epochs
        while len(epochs) > 1 and epochs[1].first <= number:
            epochs.popleft()
        self.posted += 1
        self.unmeasured_bytes += nbytes
        measured = self.failure is None and 2 * self.unmeasured_bytes >= 3 * self.slice_bytes
        if measured:
            self.unmeasured_bytes = 0
            epochs.append(Epoch(number + AHEAD))
            memory = (ctypes.c_int64 * (2 * self.ranks**2))()
            self.due.append(Exchange(number, epochs[-1], memory))
        return Slice(number, epochs[0].shares, measured)

    def fail(self, failure: FailureTuple) -> list[Epoch]:
        """End the series with `failure`, and return the epochs whose shares remain unknown.

        One of them is the epoch of all slices that are posted from now on.
        """
        unknown = [exchange.epoch for exchange in (*self.running, *self.due)]
        last = Epoch(self.posted)
        self.failure = failure
        self.epochs = deque([last])
        self.running.clear()
        self.due.clear()
        return [*unknown, last]

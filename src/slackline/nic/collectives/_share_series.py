"""The state of a series of long all_reduces that are cut into slices; see `_shares`."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import slackline._native as _native
from slackline.health import Balance
from slackline.nic._failures import FailureTuple

__all__ = ["AHEAD", "Exchange", "Series"]

AHEAD = 3
"""The number of slices between a measured slice and the slice whose shares use the measurement.

The exchange takes some milliseconds, in which the slices in between keep the ports busy.
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
    reason: str = ""
    posted: int = 0
    exchanged: int = 0
    """The number of slices whose end has been noted, and the exchange begun if one was due."""
    decided: int = 0
    """The number of slices after which the shares have been decided."""
    unmeasured_bytes: int = 0
    """The bytes of the slices posted since the last one after which an exchange is due."""
    due: set[int] = field(default_factory=set)
    """The numbers of posted slices after which an exchange of traffic counts is due."""
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

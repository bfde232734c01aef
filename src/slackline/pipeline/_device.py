"""The launch throttle of CUDA stages, which also measures when instructions ran.

The host launches at most one instruction ahead of the device, so that the choice of the next
instruction takes recent arrivals into account.

The device may begin a step later than the host, since it has to end the step before, and the host
does not wait for that. Both clocks are compared once, at the end of the step:

    host      begin ─────────────────────────────────────────────── now
    device         · · · begin event ── instructions ── last event ─┘
"""

import time
from collections import deque

import torch

from slackline.backend.staging import new_event

__all__ = ["DeviceThrottle"]


class DeviceThrottle:
    """A launch throttle for a CUDA device.

    The throttle keeps the host at most one instruction ahead, and measures with CUDA events when
    each instruction ran on the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._open: deque[torch.cuda.Event] = deque()
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._begin: torch.cuda.Event | None = None
        """The beginning of the step on the device."""
        self._begin_ns = 0
        """The beginning of the step by the host's monotonic clock."""

    def begin(self) -> None:
        self._open.clear()
        self._events.clear()
        self._begin, self._begin_ns = self._record(), time.monotonic_ns()

    def starting(self) -> None:
        self._events.append((self._record(), self._record()))

    def started(self) -> None:
        start, _ = self._events[-1]
        end = self._record()
        self._events[-1] = start, end
        self._open.append(end)

    def catch_up(self) -> None:
        while len(self._open) > 1:
            self._open.popleft().synchronize()

    def times_ns(self) -> list[tuple[int, int]] | None:
        begin = self._begin
        if begin is None or not self._events:
            return None
        last = self._record()
        last.synchronize()
        now_ns = time.monotonic_ns() - self._begin_ns
        late_ns = now_ns - _elapsed_ns(begin, last)
        return [
            (late_ns + _elapsed_ns(begin, start), late_ns + _elapsed_ns(begin, end))
            for start, end in self._events
        ]

    def _record(self) -> torch.cuda.Event:
        event = new_event(blocking=True, timing=True)
        torch.cuda.current_stream(self._device).record_event(event)
        return event


def _elapsed_ns(since: torch.cuda.Event, until: torch.cuda.Event) -> int:
    """Return the nanoseconds between two events that have happened."""
    return round(float(since.elapsed_time(until)) * 1e6)

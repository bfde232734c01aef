"""The launch throttle of CUDA stages, which also measures when instructions ran.

The host launches at most one instruction ahead of the device, so that the choice of the next
instruction takes recent arrivals into account.
"""

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
        """The beginning of the step on the device, from which all times are counted."""

    def begin(self) -> None:
        # The device is idle afterwards, so that its step begins when the host's does.
        torch.cuda.synchronize(self._device)
        self._open.clear()
        self._events.clear()
        self._begin = self._record()

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
        self._events[-1][1].synchronize()
        return [
            (round(begin.elapsed_time(start) * 1e6), round(begin.elapsed_time(end) * 1e6))
            for start, end in self._events
        ]

    def _record(self) -> torch.cuda.Event:
        event = new_event(blocking=True, timing=True)
        torch.cuda.current_stream(self._device).record_event(event)
        return event

"""Messages of CUDA stages, copied through pinned host memory on streams beside the computation.

    current stream   ──F(m)─record─────F(m+1)───────────── wait ─B(m)──
    out stream                └─ wait ─ copy to host ─ record ┐       │
    posting thread                                            └─ post │
    NIC engine                                                   └────┼── to the peer ───────▶
    back stream           copy of an arrived message to the device ───┘

No kernel waits for the network, and no send is queued before a computation. The host launches at
most one instruction ahead of the device, so that the choice of the next instruction takes recent
arrivals into account.
"""

import time
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from slackline.backend import CudaLane, new_event, new_stream
from slackline.nic import Transfer
from slackline.pipeline._lane import Entries, Tensors
from slackline.pipeline._message import pack, unpack

__all__ = ["DeviceLane", "DeviceThrottle"]


class DeviceLane:
    """The transport, between one CUDA device and the engine, of the messages of the stages on it.

    Host buffers are used again once their copies and sends have ended.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lane = CudaLane()
        self._out, self._back = new_stream(device), new_stream(device)
        self._ready: torch.cuda.Event | None = None
        self._free: dict[int, list[Tensor]] = {}
        self._under_way: list[tuple[Transfer, Tensor]] = []
        self._landing: list[tuple[torch.cuda.Event, Tensor]] = []

    def outgoing(self, nbytes: int) -> Tensor:
        self._sweep()
        return self._take(nbytes)

    def incoming(self, nbytes: int) -> Tensor:
        return self._take(nbytes)

    def fill(self, body: Tensor, entries: Entries, tensors: Tensors) -> None:
        self._out.wait_event(torch.cuda.current_stream(self._device).record_event())
        with torch.cuda.stream(self._out):
            pack(body, entries, tensors)
            for tensor in tensors:
                if tensor is not None:
                    tensor.record_stream(self._out)
        self._ready = self._out.record_event(new_event(blocking=True))

    def post(self, buffer: Tensor, posting: Callable[[], Transfer], *, inline: bool) -> None:
        ready, self._ready = self._ready, None
        if inline:
            if ready is not None:
                ready.synchronize()
            transfer = posting()
            transfer.wait()
        else:
            transfer = self._lane.post(ready, posting)
        self._under_way.append((transfer, buffer))

    def land(self, buffer: Tensor, start: int, entries: Entries) -> list[Tensor | None]:
        current = torch.cuda.current_stream(self._device)
        found: list[Tensor | None] = []
        with torch.cuda.stream(self._back):
            for host in unpack(buffer[start:], entries):
                if host is None:
                    found.append(None)
                    continue
                there = torch.empty_strided(
                    host.shape, host.stride(), dtype=host.dtype, device=self._device
                )
                found.append(there.copy_(host, non_blocking=True))
                there.record_stream(current)
        arrived = self._back.record_event()
        current.wait_event(arrived)
        self._landing.append((arrived, buffer))
        return found

    def close(self) -> None:
        self._lane.close()
        self._free.clear()

    def _take(self, nbytes: int) -> Tensor:
        if free := self._free.get(nbytes):
            return free.pop()
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def _sweep(self) -> None:
        sending = []
        for transfer, buffer in self._under_way:
            if transfer.done():
                transfer.wait()
                self._free.setdefault(buffer.numel(), []).append(buffer)
            else:
                sending.append((transfer, buffer))
        self._under_way = sending
        landing = []
        for arrived, buffer in self._landing:
            if _done(arrived):
                self._free.setdefault(buffer.numel(), []).append(buffer)
            else:
                landing.append((arrived, buffer))
        self._landing = landing


class DeviceThrottle:
    """A launch throttle for a CUDA device.

    The throttle keeps the host at most one instruction ahead, and measures with CUDA events when
    each instruction ran on the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._open: deque[torch.cuda.Event] = deque()
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._begin_ns = 0

    def begin(self) -> None:
        torch.cuda.synchronize(self._device)
        self._open.clear()
        self._events.clear()
        self._begin_ns = time.monotonic_ns()

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
        if not self._events:
            return None
        self._events[-1][1].synchronize()
        first = self._events[0][0]
        return [
            (round(first.elapsed_time(start) * 1e6), round(first.elapsed_time(end) * 1e6))
            for start, end in self._events
        ]

    def _record(self) -> torch.cuda.Event:
        event = new_event(blocking=True, timing=True)
        torch.cuda.current_stream(self._device).record_event(event)
        return event


def _done(event: torch.cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call]

"""CUDA devices: copies on separate streams, and gates, at which a stream waits for the host.

    current stream   ──record──────────────────────────────────── wait (Work.wait) ──
    out stream           └─ wait ─ copy to host ─ record ┐            │
    posting thread                                       └─ post      │
    NIC engine                                              └───┐     │
    back stream      gate, if the host went on before the end   └ copy back ─ record

A gate uses the driver's stream memory operations. Each stream of the caller has streams of its own
beside it, so that operations of independent streams never wait for each other: "out", "back", and
"landing" for copies back that wait for no gate.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch.futures import Future

from slackline.backend.staging._device import Departures, Event, Gate
from slackline.backend.staging._stream_memory import GateMemory, StreamGate, leave_captures_alone
from slackline.backend.staging._torch import new_event, new_stream
from slackline.backend.staging._worker import Worker
from slackline.errors import UsageError

__all__ = ["CudaDevice"]


_unused_events: deque[torch.cuda.Event] = deque()
"""The driver's events that no CudaEvent holds."""


class CudaEvent:
    """A recorded CUDA event; a thread that waits for it sleeps.

    The driver's event serves again afterwards and is never destroyed. The driver would block its
    destruction, and Python with it, while another thread copies to pageable memory behind a gate.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        """Record the event on `stream`."""
        self.raw = _unused_event()
        stream.record_event(self.raw)

    def __del__(self) -> None:
        if hasattr(self, "raw"):  # There is none if the driver could make none.
            _unused_events.append(self.raw)

    def synchronize(self) -> None:
        self.raw.synchronize()

    def done(self) -> bool:
        return bool(self.raw.query())  # type: ignore[no-untyped-call]


def _unused_event() -> torch.cuda.Event:
    try:
        return _unused_events.pop()
    except IndexError:
        return new_event(blocking=True)


class CudaCopies:
    """The copies of one operation on a CUDA device."""

    def __init__(
        self,
        before: CudaEvent,
        out: torch.cuda.Stream,
        back: torch.cuda.Stream,
        landing: torch.cuda.Stream,
    ) -> None:
        """Prepare copies that follow the event `before`.

        Copies to the device that wait for nothing else run on the stream `landing`, all others on
        `back`.
        """
        self._before = before
        self._out, self._back, self._landing = out, back, landing

    def to_host(self, copy: Callable[[], object], tensors: Sequence[torch.Tensor]) -> CudaEvent:
        self._out.wait_event(self._before.raw)
        return _launched(self._out, copy, tensors)

    def to_device(
        self,
        copy: Callable[[], object],
        tensors: Sequence[torch.Tensor],
        *,
        gate: Gate | None = None,
        after: Sequence[Event] = (),
    ) -> CudaEvent:
        stream = self._back if gate is not None or after else self._landing
        # The kernels that still read the targets were launched before the operation.
        stream.wait_event(self._before.raw)
        for event in after:
            stream.wait_event(_raw(event))
        if gate is not None:
            assert isinstance(gate, StreamGate)
            with torch.cuda.stream(stream):
                gate.hold(stream.cuda_stream)
        return _launched(stream, copy, tensors)


class CudaDevice:
    """The copy streams and the gates (waiting points of streams) of one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.departures = Departures()
        self._streams: dict[
            int, tuple[torch.cuda.Stream, torch.cuda.Stream, torch.cuda.Stream]
        ] = {}
        """The streams beside each stream of the caller: out, back, landing."""
        self._landing = new_stream(device)
        """The stream of new tensors and of completed Futures."""
        self._threads = threading.local()
        self._gates = GateMemory(self.allocate)
        self._worker = Worker("slackline-landing")

    def enter(self) -> None:
        if not hasattr(self._threads, "entered"):
            # Otherwise the thread's first call would make a context on device 0.
            torch.cuda.set_device(self.device)
            leave_captures_alone()
            self._threads.entered = True

    def copies(self) -> CudaCopies:
        current = self._current()
        if current.cuda_stream not in self._streams:
            device = self.device
            self._streams[current.cuda_stream] = (
                new_stream(device),
                new_stream(device),
                new_stream(device),
            )
        return CudaCopies(CudaEvent(current), *self._streams[current.cuda_stream])

    def bring(self, hosts: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], CudaEvent]:
        current = self._current()
        with torch.no_grad(), torch.cuda.stream(self._landing):
            # Memory of the landing stream has no earlier use on the caller's stream to wait for.
            found = [
                torch.empty_strided(
                    host.shape, host.stride(), dtype=host.dtype, device=self.device
                ).copy_(host, non_blocking=True)
                for host in hosts
            ]
        for tensor in found:
            tensor.record_stream(current)
        return found, CudaEvent(self._landing)

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def pin(self, address: int, nbytes: int) -> None:
        with torch.cuda.device(self.device):
            torch.cuda.check_error(_runtime().cudaHostRegister(address, nbytes, 0))

    def unpin(self, address: int) -> None:
        with torch.cuda.device(self.device):
            torch.cuda.check_error(_runtime().cudaHostUnregister(address))

    def gate(self) -> StreamGate:
        with torch.cuda.device(self.device):
            return self._gates.gate()

    def follow(self, event: Event) -> None:
        self._current().wait_event(_raw(event))

    def run_later(self, function: Callable[[], None]) -> None:
        self._worker.run(partial(self._run, function))

    def _run(self, function: Callable[[], None]) -> None:
        self.enter()
        function()

    def future(self) -> Future[Any]:
        return Future(devices=[self.device])

    def completing(self, events: Iterable[Event]) -> AbstractContextManager[object]:
        for event in events:
            self._landing.wait_event(_raw(event))
        return torch.cuda.stream(self._landing)

    def _current(self) -> torch.cuda.Stream:
        """Return the caller's current stream; raise UsageError if it is captured in a graph."""
        current = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(current):
            if torch.cuda.is_current_stream_capturing():
                raise UsageError(
                    "slackline's operations cannot be captured in a CUDA graph, since a replay "
                    "would not reach the network: call them, and wait for them, outside the capture"
                )
        return current


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _launched(
    stream: torch.cuda.Stream, copy: Callable[[], object], tensors: Sequence[torch.Tensor]
) -> CudaEvent:
    """Launch `copy()` on a stream; return the event of its end."""
    with torch.no_grad(), torch.cuda.stream(stream):
        copy()
    for tensor in tensors:
        tensor.record_stream(stream)
    return CudaEvent(stream)


def _raw(event: Event) -> torch.cuda.Event:
    assert isinstance(event, CudaEvent)
    raw: torch.cuda.Event = event.raw
    return raw

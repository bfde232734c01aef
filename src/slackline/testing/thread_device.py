"""An accelerator made of threads, for tests of staging on machines without an accelerator.

Tensors lie in the CPU's memory. Each stream is a thread that runs the launched functions in order,
later than the launch, so that a missing wait shows as a wrong result.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.futures import Future

from slackline.backend.staging import Departures, Event, Gate, Worker
from slackline.errors import UsageError

__all__ = ["HostDevice", "ThreadDevice", "ThreadEvent", "ThreadStream"]


_OPEN = 1
"""The value of an open gate's word."""

_LOOK_S = 100e-6
"""The time between two looks at a gate."""


class ThreadEvent:
    """A point in a ThreadStream; the point may be created before its place in a stream."""

    def __init__(self) -> None:
        self._happened = threading.Event()
        self._error: BaseException | None = None

    def happen(self, error: BaseException | None = None) -> None:
        """Wake up all waiting threads; with an error, `synchronize` raises it."""
        self._error = error
        self._happened.set()

    def synchronize(self) -> None:
        """Block until the event has happened; raise the error that it carries."""
        self._happened.wait()
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        """Return whether the event has happened."""
        return self._happened.is_set()


class _ThreadGate:
    """A word of memory at which a stream looks again and again, as a device does."""

    def __init__(self) -> None:
        self._word = ctypes.c_uint32(0)

    @property
    def place(self) -> tuple[int, int]:
        return ctypes.addressof(self._word), _OPEN

    def open(self) -> None:
        self._word.value = _OPEN

    def hold(self) -> None:
        while self._word.value != _OPEN:
            time.sleep(_LOOK_S)


class ThreadStream:
    """A thread that runs functions in the order of their launches."""

    def __init__(self, name: str) -> None:
        self._worker = Worker(name)

    def launch(self, function: Callable[[], object]) -> ThreadEvent:
        """Queue a function; return the event of its end, which carries the function's error."""
        event = ThreadEvent()

        def run() -> None:
            try:
                function()
            except Exception as error:  # any error must reach the threads that wait
                event.happen(error)
            else:
                event.happen()

        self._worker.run(run)
        return event

    def close(self) -> None:
        """Run everything that was launched, and end the thread."""
        self._worker.close()


class _ThreadCopies:
    def __init__(
        self, before: ThreadEvent, out: ThreadStream, back: ThreadStream, landing: ThreadStream
    ) -> None:
        self._before = before
        self._out, self._back, self._landing = out, back, landing

    def to_host(self, copy: Callable[[], object], tensors: Sequence[torch.Tensor]) -> ThreadEvent:
        self._out.launch(self._before.synchronize)
        return self._out.launch(copy)

    def to_device(
        self,
        copy: Callable[[], object],
        tensors: Sequence[torch.Tensor],
        *,
        gate: Gate | None = None,
        after: Sequence[Event] = (),
    ) -> ThreadEvent:
        stream = self._back if gate is not None or after else self._landing
        stream.launch(self._before.synchronize)
        for event in after:
            stream.launch(event.synchronize)
        if gate is not None:
            assert isinstance(gate, _ThreadGate)
            stream.launch(gate.hold)
        return stream.launch(copy)


class ThreadDevice:
    """An implementation of `backend.staging.Device` by threads; its tensors are CPU tensors.

    `current` is the calling thread's stream. A computation on the device is a function that is
    launched on a stream. Close the device at the end, outside all streams.
    """

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.departures = Departures()
        self._lock = threading.Lock()
        self._streams: list[ThreadStream] = []
        self._beside: dict[ThreadStream, tuple[ThreadStream, ThreadStream, ThreadStream]] = {}
        self._own = threading.local()
        self.landing = self.new_stream()
        """The stream of new tensors."""
        self.entered = set[str]()
        """The names of the threads that have called `enter`."""
        self._worker = Worker("landing")
        self.pinned: dict[int, int] = {}
        """The bytes of each piece of pinned memory, by its address."""

    def new_stream(self) -> ThreadStream:
        """Return another stream."""
        with self._lock:
            self._streams.append(ThreadStream(f"stream-{len(self._streams)}"))
            return self._streams[-1]

    @property
    def current(self) -> ThreadStream:
        """The current stream of the calling thread, which at first is a stream of its own."""
        if not hasattr(self._own, "stream"):
            self._own.stream = self.new_stream()
        stream: ThreadStream = self._own.stream
        return stream

    @contextmanager
    def on(self, stream: ThreadStream) -> Iterator[None]:
        """Make `stream` the calling thread's current stream within the context."""
        before, self._own.stream = self.current, stream
        try:
            yield
        finally:
            self._own.stream = before

    def copies(self) -> _ThreadCopies:
        """Return an object that makes the memory copies of an operation.

        The caller posts the operation now, on the caller's current stream.
        """
        current = self.current
        return _ThreadCopies(current.launch(_nothing), *self.beside(current))

    def beside(self, stream: ThreadStream) -> tuple[ThreadStream, ThreadStream, ThreadStream]:
        """Return the streams of copies beside a stream of the caller.

        These are the stream of copies to the host, that of copies to the device behind a gate, and
        that of copies to the device which wait for nothing but earlier work.
        """
        if stream not in self._beside:
            self._beside[stream] = self.new_stream(), self.new_stream(), self.new_stream()
        return self._beside[stream]

    def enter(self) -> None:
        """Note the calling thread."""
        self.entered.add(threading.current_thread().name)

    def bring(self, hosts: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], ThreadEvent]:
        """Copy host tensors to new device tensors, on the stream for incoming data (landing)."""
        found = [
            torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="cpu")
            for each in hosts
        ]

        def copy() -> None:
            for tensor, host in zip(found, hosts, strict=True):
                tensor.copy_(host)

        return found, self.landing.launch(copy)

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return `nbytes` bytes of host memory."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")

    def pin(self, address: int, nbytes: int) -> None:
        """Let the device access host memory; its threads can access all memory anyway."""
        if address % 4096 or nbytes % 4096:
            raise UsageError(f"{nbytes} bytes at {address:#x} are no whole pages")
        with self._lock:
            if any(
                address < other + length and other < address + nbytes
                for other, length in self.pinned.items()
            ):
                raise UsageError(f"the memory at {address:#x} is pinned already")
            self.pinned[address] = nbytes

    def unpin(self, address: int) -> None:
        """Undo `pin`."""
        with self._lock:
            del self.pinned[address]

    def gate(self) -> _ThreadGate:
        """Return a closed gate: a point in a stream, which the host opens later."""
        return _ThreadGate()

    def follow(self, event: Event) -> None:
        """Make the caller's current stream wait for the event."""
        self.current.launch(event.synchronize)

    def run_later(self, function: Callable[[], None]) -> None:
        """Have the device's thread call `function`, in the order of the calls."""
        self._worker.run(function)

    def future(self) -> Future[Any]:
        """Return a torch Future whose value may be tensors of the device."""
        return Future()

    def completing(self, events: Iterable[Event]) -> AbstractContextManager[object]:
        """Block until the events have happened, since a Future of CPU tensors orders no streams."""
        for event in events:
            event.synchronize()
        return nullcontext()

    def synchronize(self) -> None:
        """Block until everything that was launched on the calling thread's stream is done."""
        self.current.launch(_nothing).synchronize()

    def close(self) -> None:
        """Run everything that was launched, and end all threads."""
        self._worker.close()
        for stream in self._streams:
            stream.close()


class HostDevice(ThreadDevice):
    """A device whose kernels run on the host: the host waits wherever the stream would wait."""

    def follow(self, event: Event) -> None:
        """Block until the event has happened."""
        super().follow(event)
        self.synchronize()


def _nothing() -> None:
    pass

"""The interface of an accelerator whose tensors are staged: its streams, events, copies, memory.

    caller's stream  ──record───────────────────────────────── wait ──
    copies out           └─ wait ─ copy to host ─ event
    copies back                                  gate ─ copy to device ─ event

A gate is a point in a stream that the host opens. With a gate, copies back are launched before
their data has arrived, and so the caller's stream can wait for the data while the host goes on.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch.futures import Future

__all__ = ["Copies", "Departures", "Device", "Event", "Gate"]


class Event(Protocol):
    """A point in a stream: the end of all work that was launched on the stream before it."""

    def synchronize(self) -> None:
        """Block, without the GIL, until the event has happened."""

    def done(self) -> bool:
        """Return whether the event has happened."""


class Gate(Protocol):
    """A point in a stream at which the device waits until the host opens the gate."""

    @property
    def place(self) -> tuple[int, int]:
        """The address of the 32 bits at which the stream looks, and the value that opens it.

        Anybody may store the value, also the engine, and `open` must be called all the same.
        """

    def open(self) -> None:
        """Let the stream go on. The call only stores to memory and never blocks."""


class Copies(Protocol):
    """The copies of one operation between host and device, callable on any thread.

    All copies follow the work that the caller had launched when the object was made.
    """

    def to_host(self, copy: Callable[[], object], tensors: Sequence[torch.Tensor]) -> Event:
        """Launch `copy()`, which reads the device's `tensors`; return the event of its end."""

    def to_device(
        self,
        copy: Callable[[], object],
        tensors: Sequence[torch.Tensor],
        *,
        gate: Gate | None = None,
        after: Sequence[Event] = (),
    ) -> Event:
        """Launch `copy()`, which writes the device's `tensors`; return the event of its end.

        The copy waits for `gate` and for the events `after`.
        """


class Device(Protocol):
    """An accelerator, and the streams on which operations of the engine copy its tensors."""

    device: torch.device
    departures: "Departures"

    def enter(self) -> None:
        """Make the calling thread, one that the backend has started, a thread of this device.

        What such a thread does is no part of a graph that another thread captures meanwhile.
        """

    def copies(self) -> Copies:
        """Return an object that makes the memory copies of an operation.

        The caller posts the operation now, on the caller's current stream.

        Raises UsageError while the stream is captured in a graph.
        """

    def bring(self, hosts: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], Event]:
        """Copy host tensors to new device tensors; return the new tensors and the event of the end.

        The copies wait for no work that was launched before, and the caller's stream does not yet
        wait for the copies: see `follow`.
        """

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Return `nbytes` bytes of host memory that the device can access by itself (DMA)."""

    def pin(self, address: int, nbytes: int) -> None:
        """Let the device access whole pages of host memory by itself (DMA), until `unpin`."""

    def unpin(self, address: int) -> None:
        """Undo the `pin` of the memory at this address."""

    def gate(self) -> Gate:
        """Return a closed gate: a point in a stream, which the host opens later."""

    def follow(self, event: Event) -> None:
        """Make the caller's current stream wait for the event. The host does not wait."""

    def run_later(self, function: Callable[[], None]) -> None:
        """Have a thread of the device call `function`, in the order of the calls.

        The thread that learns of the end of transfers must only open gates. A launch may block it
        while another thread waits, in a call of the driver, for one of these gates.
        """

    def future(self) -> Future[Any]:
        """Return a torch Future whose value may be tensors of the device."""

    def completing(self, events: Iterable[Event]) -> AbstractContextManager[object]:
        """Return a context in which the current stream follows the events.

        A torch Future that is completed in this context makes its readers' streams wait for the
        events.
        """


class Departures:
    """The number of operations whose data still has to be copied to the host and posted.

    No gate is placed before the engine has all operations that were called earlier, since posting
    needs the driver, and a closed gate can keep other threads from the driver: while one thread
    launches a kernel for the first time, or copies to pageable memory, it may hold a lock of the
    driver until the gate opens. If streams share a hardware queue, a closed gate also holds back
    each copy that is launched after it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._left = 0

    def begin(self) -> None:
        """Count an operation that another thread will post."""
        with self._changed:
            self._left += 1

    def end(self) -> None:
        """Record that one counted operation is posted, or has failed."""
        with self._changed:
            self._left -= 1
            self._changed.notify_all()

    def notify(self) -> None:
        """Wake up the threads in `wait_unless`; each evaluates its condition `ended` again."""
        with self._changed:
            self._changed.notify_all()

    def wait_unless(self, ended: Callable[[], bool]) -> None:
        """Block until all counted operations are posted, or `ended()` is true."""
        with self._changed:
            self._changed.wait_for(lambda: not self._left or ended())

"""Operations on CUDA tensors, copied through pinned host memory on streams of their own.

    current stream   ──record──────────────────────────────────── wait (Work.wait) ──
    side stream          └─ wait ─ copy to host ─ record ┐        ┌ copy back ─ record
    posting thread                                       └─ post  │
    nic                                                     └─────┘

The accelerator only copies, and no kernel waits for the network. The caller's stream waits only for
the copy back, which is queued after the data has arrived. Long tensors go the same way in pieces
(_pieces).
"""

import queue
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch.futures import Future

from slackline.backend._pieces import BlockRing, Piece, Ready
from slackline.backend._torch import left_alone_by_compile, new_event, new_stream
from slackline.backend._work import _NO_TIMEOUT, TransferWork
from slackline.errors import UsageError
from slackline.nic import Transfer

__all__ = ["CudaCopies", "CudaLane", "CudaStage", "CudaWork", "Deferred"]

Callback = Callable[[BaseException | None], None]


class CudaStage:
    """The host memory of one operation on CUDA tensors: a pinned copy of each tensor.

    `out` and `back` are the streams of the copies to the host and to the device.
    """

    def __init__(self, out: torch.cuda.Stream, back: torch.cuda.Stream) -> None:
        self.device = out.device
        self.back = back
        self.arrived: torch.cuda.Event | None = None
        self._out = out
        self._landings: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._departed: list[torch.Tensor] = []
        # Copies must follow the kernels that write the sources or still read the targets.
        self._before = torch.cuda.current_stream(self.device).record_event()
        out.wait_event(self._before)

    def source(self, tensor: torch.Tensor) -> int:
        return self._to_host(tensor).data_ptr()

    def temporary(self, tensor: torch.Tensor) -> int:
        # The tensor was computed on the current stream after `_before`, so the copy must wait for
        # that stream again.
        self._out.wait_stream(torch.cuda.current_stream(self.device))
        return self.source(tensor)

    def target(self, tensor: torch.Tensor) -> int:
        self._check(tensor)
        host = _pinned(tensor)
        self._landings.append((tensor, host))
        return host.data_ptr()

    def both(self, tensor: torch.Tensor) -> int:
        host = self._to_host(tensor)
        self._landings.append((tensor, host))
        return host.data_ptr()

    @property
    def lands(self) -> bool:
        return bool(self._landings)

    def depart(self) -> torch.cuda.Event | None:
        """Return the CUDA event of the end of all copies to the host; None if there are none."""
        return self._out.record_event(new_event(blocking=True)) if self._departed else None

    def land(self) -> None:
        """Queue the copies of results to the device; `arrived` is the CUDA event of their end."""
        self.back.wait_event(self._before)
        with torch.no_grad(), torch.cuda.stream(self.back):
            for tensor, host in self._landings:
                tensor.copy_(host, non_blocking=True)
                tensor.record_stream(self.back)
        self.arrived = self.back.record_event()

    def _to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        self._check(tensor)
        host = _pinned(tensor)
        with torch.no_grad(), torch.cuda.stream(self._out):
            host.copy_(tensor, non_blocking=True)
            tensor.record_stream(self._out)
        self._departed.append(host)
        return host

    def _check(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided:
            raise UsageError(f"slackline takes dense tensors, not one of layout {tensor.layout}")
        if tensor.device != self.device:
            raise UsageError(
                f"an operation's tensors share a device, not {self.device} and {tensor.device}"
            )


class CudaCopies:
    """The copies of one operation's pieces between host and CUDA device, on two streams."""

    def __init__(self, out: torch.cuda.Stream, back: torch.cuda.Stream) -> None:
        self.device = out.device
        self.back = back
        self.arrived: torch.cuda.Event | None = None
        self._out = out
        self._landing = threading.Lock()
        self._before = torch.cuda.current_stream(self.device).record_event()

    def to_host(self, host: torch.Tensor, device: torch.Tensor) -> torch.cuda.Event:
        """Queue a copy of a piece to the host, after the kernels queued before the operation."""
        self._out.wait_event(self._before)
        with torch.no_grad(), torch.cuda.stream(self._out):
            host.copy_(device, non_blocking=True)
            device.record_stream(self._out)
        event = new_event(blocking=True)
        self._out.record_event(event)
        return event

    def to_device(self, device: torch.Tensor, host: torch.Tensor) -> torch.cuda.Event:
        """Queue a copy of a piece to the device; `arrived` is the event of the latest such copy."""
        with self._landing, torch.no_grad(), torch.cuda.stream(self.back):
            self.back.wait_event(self._before)
            device.copy_(host, non_blocking=True)
            device.record_stream(self.back)
            event = self.arrived = new_event(blocking=True)
            self.back.record_event(event)
            return event


@left_alone_by_compile
class CudaWork(TransferWork):
    """A TransferWork whose results are copied to a device."""

    def __init__(
        self, transfer: Transfer, results: Sequence[torch.Tensor], stage: CudaStage | CudaCopies
    ) -> None:
        super().__init__(transfer, results, stage)
        self._stage = stage

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Block until the data is in host memory; make the current stream wait for the copy back.

        `timeout` zero means the operation's own timeout.
        """
        super().wait(timeout)
        if self._stage.arrived is not None:
            torch.cuda.current_stream(self._stage.device).wait_event(self._stage.arrived)
        return True

    def _new_future(self) -> Future[Any]:
        return Future(devices=[self._stage.device])

    def _complete(self, future: Future[Any]) -> None:
        # A Future records events on the current streams of its value's devices, and its readers
        # wait for those events. So the value must be the tensors.
        with torch.cuda.stream(self._stage.back):
            future.set_result(self.result())


class Deferred:
    """The Transfer of an operation that another thread will post."""

    def __init__(self) -> None:
        self._posted = threading.Event()
        self._transfer: Transfer | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._callbacks: list[Callback] = []

    @property
    def source(self) -> int | None:
        return None if self._transfer is None else self._transfer.source

    def done(self) -> bool:
        if self._transfer is not None:
            return self._transfer.done()
        return self._error is not None

    def wait(self, timeout: timedelta | None = None) -> None:
        self._posted.wait()  # This wait ends: the posting thread sets it even after an error.
        if self._error is not None:
            raise self._error
        assert self._transfer is not None
        self._transfer.wait(timeout)

    def add_done_callback(self, fn: Callback, /) -> None:
        with self._lock:
            if not self._posted.is_set():
                self._callbacks.append(fn)
                return
        self._pass_on(fn)

    def post(self, posting: Callable[[], Transfer]) -> None:
        """Call `posting`, which posts the operation; an exception becomes the transfer's error."""
        try:
            self._transfer = posting()
        except Exception as error:  # any error must reach the threads that wait
            self._error = error
        with self._lock:
            self._posted.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._pass_on(callback)

    def _pass_on(self, fn: Callback) -> None:
        if self._transfer is not None:
            self._transfer.add_done_callback(fn)
        else:
            fn(self._error)


class CudaLane:
    """A thread that posts a group's operations in the order of the calls.

    Each operation is posted when its event has happened, such as the end of a copy to the host.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[
            tuple[Ready | None, Callable[[], Transfer], Deferred] | None
        ] = queue.SimpleQueue()
        self._streams: dict[torch.device, tuple[torch.cuda.Stream, torch.cuda.Stream]] = {}
        self._blocks = BlockRing(lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True))
        self._thread = threading.Thread(target=self._serve, name="slackline-lane", daemon=True)
        self._thread.start()

    def stage(self, device: torch.device) -> CudaStage:
        """Return the pinned host memory (CudaStage) for one operation on tensors of this device."""
        return CudaStage(*self._streams_of(device))

    def copies(self, device: torch.device) -> CudaCopies:
        """Return the object that copies the pieces of one operation's tensor on this device."""
        return CudaCopies(*self._streams_of(device))

    def post(self, ready: Ready | None, posting: Callable[[], Transfer]) -> Transfer:
        """Queue an operation for the thread, and return its Transfer without blocking.

        The thread calls `posting` when `ready` has happened; None means at once.
        """
        deferred = Deferred()
        self._queue.put((ready, posting, deferred))
        return deferred

    def post_pieces(
        self,
        pieces: Sequence[Piece],
        copies: CudaCopies,
        post: Callable[[torch.Tensor], Transfer],
    ) -> Transfer:
        """Queue an operation on every piece of a tensor; return one Transfer without blocking.

        The thread runs BlockRing.pass_through with the same arguments.
        """
        return self.post(None, partial(self._blocks.pass_through, pieces, copies, post))

    def close(self) -> None:
        """Post all queued operations and end the posting thread; block until it has ended."""
        self._queue.put(None)
        self._thread.join()

    def _streams_of(self, device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
        if device not in self._streams:
            self._streams[device] = (new_stream(device), new_stream(device))
        return self._streams[device]

    def _serve(self) -> None:
        while (entry := self._queue.get()) is not None:
            ready, posting, deferred = entry
            deferred.post(partial(_after, ready, posting))


def _after(ready: Ready | None, posting: Callable[[], Transfer]) -> Transfer:
    if ready is not None:
        ready.synchronize()
    return posting()


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)

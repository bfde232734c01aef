"""The message buffers of a pipeline stage, and the copies between them and the stage's device.

On an accelerator, the copies run beside the computation:

    current stream   ──F(m)─record─────F(m+1)───────────── wait ─B(m)──
    out stream                └─ wait ─ copy to host ─ event  │
    posting thread                                       └─ post
    NIC engine                                              └────┼── to the peer ───────▶
    landing stream        copy of an arrived message to the device

No kernel waits for the network, and no computation waits for a send. A computation waits only for
the copies of the messages that it uses.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch import distributed as dist

from slackline.backend import empty
from slackline.backend.staging import Device, Event, PostingQueue
from slackline.nic import Transfer
from slackline.pipeline._message import Layout, pack, unpack

__all__ = ["Landed", "MessageBuffers"]

_MOST_SIZES = 32

Tensors = Sequence[Tensor | None]
Landed = Callable[[], list[Tensor | None]]
"""A function that returns an arrived message's tensors, on the stage's device.

The caller's current stream then waits for their copies to the device.
"""


class MessageBuffers:
    """The message buffers of the stages on one device.

    The engine sends from the buffers and receives into them. A buffer is used again once its send
    and its copies have ended. Stages on the CPU send from memory that the engine has registered,
    which peers on the same host read in place, and take the tensors of an arrived message as views
    of its buffer. Stages on an accelerator have buffers that the accelerator copies from and to.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: Device | None) -> None:
        """Create buffers for stages on `device`; None stands for the CPU."""
        self._group = group
        self._device = device
        self._queue = PostingQueue("slackline-messages")
        self._ready: Event | None = None
        self._free: dict[int, list[Tensor]] = {}
        self._sending: list[tuple[Transfer, Tensor]] = []
        self._landing: list[tuple[Event, Tensor]] = []

    def outgoing(self, nbytes: int) -> Tensor:
        """Return `nbytes` bytes of host memory for a message to send.

        Raises the error of an earlier send that was not inline.
        """
        return self._take(nbytes)

    def incoming(self, nbytes: int) -> Tensor:
        """Return `nbytes` bytes of host memory to receive a message in."""
        if self._device is None:
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        return self._take(nbytes)

    def fill(self, buffer: Tensor, start: int, layout: Layout, tensors: Tensors) -> None:
        """Copy tensors into the body of a message, from byte `start` of `buffer` on.

        Copies may still run when the call returns.
        """
        if self._device is None:
            pack(buffer, start, layout, tensors)
            return
        copy = partial(pack, buffer, start, layout, tensors)
        given = [tensor for tensor in tensors if tensor is not None]
        self._ready = self._device.copies().to_host(copy, given)

    def post(self, buffer: Tensor, posting: Callable[[], Transfer], *, inline: bool) -> Transfer:
        """Call `posting` once the copies of the message are done; reuse `buffer` after the send.

        Returns the handle of the send.

        With `inline`, the caller's thread does everything and blocks until the send has ended. The
        error of a failed send is raised here if it is inline, else in a later call of `outgoing`.
        """
        ready, self._ready = self._ready, None
        if self._device is not None and not inline:
            transfer = self._queue.post(partial(self._depart, self._device, ready, posting))
        else:
            if ready is not None:
                ready.synchronize()
            transfer = posting()
        if inline:
            transfer.wait()
        self._sending.append((transfer, buffer))
        return transfer

    @staticmethod
    def _depart(device: Device, ready: Event | None, posting: Callable[[], Transfer]) -> Transfer:
        """Post a message on the thread of the queue, once its copies to the host are done."""
        device.enter()
        if ready is not None:
            ready.synchronize()
        return posting()

    def land(self, buffer: Tensor, start: int, layout: Layout) -> Landed:
        """Copy an arrived message to the stage's device; return a function that gives its tensors.

        The message's body begins at byte `start` of `buffer`.
        """
        hosts = unpack(buffer, start, layout)
        if self._device is None:
            return lambda: hosts
        device = self._device
        arrived, event = device.bring([host for host in hosts if host is not None])
        self._landing.append((event, buffer))
        left = iter(arrived)
        landed = [None if host is None else next(left) for host in hosts]

        def take() -> list[Tensor | None]:
            device.follow(event)
            return landed

        return take

    def close(self) -> None:
        """Post all queued sends and free the message buffers; no messages may follow.

        The buffer of a send that still runs is freed at the end of the send. Raises the error of a
        send that has failed, unless a call of `outgoing` has raised it.
        """
        self._queue.close()
        sending, self._sending = self._sending, []
        for transfer, buffer in sending:
            transfer.add_done_callback(partial(_drop, buffer))
        self._landing.clear()
        self._free.clear()
        for transfer, _ in sending:
            if transfer.done():
                transfer.wait()

    def _take(self, nbytes: int) -> Tensor:
        self._sweep()
        if free := self._free.get(nbytes):
            return free.pop()
        if len(self._free) > _MOST_SIZES:
            self._free.clear()
        if self._device is not None:
            return self._device.allocate(nbytes)
        return empty(nbytes, dtype=torch.uint8, group=self._group)

    def _sweep(self) -> None:
        """Free the buffers whose sends and copies have ended; raise the error of a failed send."""
        if not (self._sending or self._landing):
            return
        sending, self._sending = self._sending, []
        for transfer, buffer in sending:
            if not transfer.done():
                self._sending.append((transfer, buffer))
                continue
            transfer.wait()
            self._free.setdefault(buffer.numel(), []).append(buffer)
        landing, self._landing = self._landing, []
        for event, buffer in landing:
            if event.done():
                self._free.setdefault(buffer.numel(), []).append(buffer)
            else:
                self._landing.append((event, buffer))


def _drop(buffer: Tensor, error: BaseException | None) -> None:
    """Do nothing; bound to `buffer` as a callback, the function keeps `buffer` until the call."""

"""The messages of one rank's stages: sends that wait for nothing, arrivals that wake the rank.

Each message is a header and a body in one buffer. Its receive is posted before it can come, so the
receiver must know its size: both ends know what the same message took in the last steps, and the
largest of those is its capacity. What fits is sent as one message of that size; a body that does
not follows as a second one, whose receive is posted when the header has told its size. The first
step has no past, so there every body follows its header.
"""

import queue
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from torch import Tensor

from slackline.errors import InternalError, TimeoutError
from slackline.nic import Group, NativeTransfer, Transfer
from slackline.pipeline._lane import Lane
from slackline.pipeline._parcel import (
    HEADER_BYTES,
    Label,
    entries_of,
    read_label,
    write_label,
)
from slackline.plan.pipeline import Instruction, Kind
from slackline.wire import DType

__all__ = ["Address", "Arrival", "Mail", "name_of"]

Address = tuple[int, bool, int]
"""(the stage that receives, whether it is a gradient, microbatch)."""

_WINDOW = 16
"""Receives posted ahead on each channel: more than any link has under way, fewer than a step's."""
_REMEMBERED = 4
_NO_LIMIT = timedelta(days=365)
"""Whoever waits has a limit of its own; a message that nobody waits for yet is not late."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message that came."""

    address: Address
    sent_ns: int
    """When its sender had computed it, by the sender's monotonic clock."""
    arrived_ns: int
    """By this rank's."""
    nbytes: int

    @property
    def sender(self) -> Instruction:
        """What computed it."""
        return _sender(self.address)


@dataclass(slots=True)
class _Receive:
    address: Address
    buffer: Tensor
    label: Label | None
    """None: the header is still to come."""


class Mail:
    """The posting and the receiving; used by the thread that computes."""

    def __init__(
        self, nic: Group, lane: Lane, placement: Sequence[int], microbatches: int, first_tag: int
    ) -> None:
        self._nic, self._lane = nic, lane
        self._placement = placement
        self._microbatches = microbatches
        self._first_tag = first_tag
        self._step = -1
        self._past: dict[Address, deque[int]] = {}
        self._inbox: dict[Address, list[Tensor | None]] = {}
        self._ended: queue.SimpleQueue[tuple[_Receive, BaseException | None, int]] = (
            queue.SimpleQueue()
        )
        self._orders: dict[tuple[int, bool], Iterator[int]] = {}

    @staticmethod
    def tags(stages: int, microbatches: int) -> int:
        """How many tags a schedule needs."""
        return stages * 2 * microbatches * 2

    def begin(self, step: int, orders: Mapping[tuple[int, bool], Sequence[int]]) -> None:
        """Opens the channels (receiving stage, whether gradients) of this step.

        Each has the microbatches in the order in which they are sent.
        """
        self._step = step
        self._inbox.clear()
        self._orders = {channel: iter(order) for channel, order in orders.items()}
        for turn in range(_WINDOW):
            for channel, order in orders.items():
                if turn < len(order):
                    self._expect(channel)

    def send(self, address: Address, tensors: Sequence[Tensor | None], *, inline: bool) -> int:
        """Hands a message to the engine; returns its bytes."""
        stage, _, microbatch = address
        entries = entries_of(tensors, name_of(_sender(address)))
        label = Label(time.monotonic_ns(), self._step, microbatch, entries)
        capacity, nbytes = self._capacity(address), label.body_bytes
        buffer = self._lane.outgoing(HEADER_BYTES + capacity)
        write_label(buffer.data_ptr(), label)
        fits = nbytes <= capacity
        if fits:
            self._lane.fill(buffer[HEADER_BYTES:], entries, tensors)
        peer = self._placement[stage]
        self._post(buffer, peer, self._tag(address, 0), not address[1], inline=inline)
        if not fits:
            body = self._lane.outgoing(nbytes)
            self._lane.fill(body, entries, tensors)
            self._post(body, peer, self._tag(address, 1), not address[1], inline=inline)
        self._remember(address, nbytes)
        return nbytes

    def hand_over(self, address: Address, tensors: Sequence[Tensor | None]) -> None:
        """A message between two stages of this rank."""
        entries_of(tensors, name_of(_sender(address)))
        self._inbox[address] = [
            None if each is None else each.detach().requires_grad_(each.requires_grad)
            for each in tensors
        ]

    def take(self, address: Address) -> list[Tensor | None]:
        """The tensors of a message that has arrived."""
        return self._inbox.pop(address)

    def poll(self) -> list[Arrival]:
        """What has come since the last call; waits for nothing."""
        found: list[Arrival] = []
        while True:
            try:
                ended = self._ended.get_nowait()
            except queue.Empty:
                return found
            arrival = self._receive(*ended)
            if arrival is not None:
                found.append(arrival)

    def wait(self, timeout: timedelta) -> list[Arrival]:
        """Blocks until something has come; raises TimeoutError, or why a message will not come."""
        found = self.wait_briefly(timeout.total_seconds())
        if found is None:
            raise TimeoutError(f"nothing has come for {timeout}")
        return found

    def wait_briefly(self, seconds: float) -> list[Arrival] | None:
        """As `wait`, but gives None where nothing comes."""
        try:
            ended = self._ended.get(timeout=seconds)
        except queue.Empty:
            return None
        arrival = self._receive(*ended)
        return self.poll() if arrival is None else [arrival, *self.poll()]

    def _receive(
        self, receive: _Receive, error: BaseException | None, arrived_ns: int
    ) -> Arrival | None:
        address = receive.address
        if error is not None:
            error.add_note(f"while stage {address[0]} waited for {name_of(_sender(address))}")
            raise error
        if receive.label is None:
            label = read_label(receive.buffer.data_ptr())
            if (label.step, label.microbatch) != (self._step, address[2]):
                raise InternalError(
                    f"{name_of(_sender(address))} of step {self._step} is microbatch "
                    f"{label.microbatch} of step {label.step}"
                )
            nbytes = label.body_bytes
            if nbytes > self._capacity(address):
                self._post_receive(address, self._lane.incoming(nbytes), label)
                return None
            start = HEADER_BYTES
        else:
            label, start = receive.label, 0
        self._remember(address, label.body_bytes)
        tensors = self._lane.land(receive.buffer, start, label.entries)
        for tensor, entry in zip(tensors, label.entries, strict=True):
            if tensor is not None and entry.needs_grad and not address[1]:
                tensor.requires_grad_()
        self._inbox[address] = tensors
        self._expect(address[:2])
        return Arrival(address, label.sent_ns, arrived_ns, label.body_bytes)

    def _expect(self, channel: tuple[int, bool]) -> None:
        microbatch = next(self._orders[channel], None)
        if microbatch is None:
            return
        address = (*channel, microbatch)
        buffer = self._lane.incoming(HEADER_BYTES + self._capacity(address))
        self._post_receive(address, buffer, None)

    def _post_receive(self, address: Address, buffer: Tensor, label: Label | None) -> None:
        receive = _Receive(address, buffer, label)
        transfer = self._nic.recv(
            buffer.data_ptr(),
            buffer.numel(),
            DType.UINT8,
            self._placement[_sender(address).stage],
            self._tag(address, label is not None),
            timeout=_NO_LIMIT,
        )
        # The callback holds the buffer as long as the engine may write to it.
        transfer.add_done_callback(partial(self._tell, receive, transfer))

    def _tell(self, receive: _Receive, transfer: Transfer, error: BaseException | None) -> None:
        # Python may get round to it long after the engine has.
        known = transfer.ended_ns if isinstance(transfer, NativeTransfer) else 0
        self._ended.put((receive, error, known or time.monotonic_ns()))

    def _post(self, buffer: Tensor, peer: int, tag: int, priority: int, *, inline: bool) -> None:
        def post() -> Transfer:
            return self._nic.send(
                buffer.data_ptr(),
                buffer.numel(),
                DType.UINT8,
                peer,
                tag,
                priority=priority,
                timeout=_NO_LIMIT,
                blocking=inline,
            )

        self._lane.post(buffer, post, inline=inline)

    def _tag(self, address: Address, part: int) -> int:
        stage, backward, microbatch = address
        return (
            self._first_tag + ((2 * stage + backward) * self._microbatches + microbatch) * 2 + part
        )

    def _capacity(self, address: Address) -> int:
        return max(self._past.get(address, (0,)))

    def _remember(self, address: Address, nbytes: int) -> None:
        self._past.setdefault(address, deque(maxlen=_REMEMBERED)).append(nbytes)


def name_of(instruction: Instruction) -> str:
    """An instruction in an error: "stage 2, F0"."""
    return f"stage {instruction.stage}, {instruction.in_stage}"


def _sender(address: Address) -> Instruction:
    stage, backward, microbatch = address
    if backward:
        return Instruction(stage + 1, Kind.B, microbatch)
    return Instruction(stage - 1, Kind.F, microbatch)

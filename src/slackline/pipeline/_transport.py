"""The point-to-point transport of messages between pipeline stages.

Sends do not block, unless they are inline, and arrivals wake the rank. A message is a header and a
body in one buffer. The receive is posted before the message is sent, so both ends must agree on the
size of the transfer: a header, and a capacity for the body. The capacity is the largest length of
the body in the latest steps, which both ends know. A body that fits is sent with its header. A
longer body follows in a second transfer, whose receive is posted when the header has arrived. In
the first step the capacity is 0, so every body follows its header.
"""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from itertools import islice
from typing import NamedTuple

from torch import Tensor

from slackline.backend.profiling import Facts, profiling, recorded_transfer
from slackline.errors import InternalError
from slackline.nic import Completion, Group, Operation, Transfer
from slackline.pipeline._message import (
    HEADER_BYTES,
    Header,
    layout_of,
    read_header,
    stamp,
    write_header,
)
from slackline.pipeline._message_buffers import Landed, MessageBuffers
from slackline.plan.pipeline import Instruction, Kind
from slackline.wire import DType

__all__ = ["Address", "Arrival", "Transport", "name_of", "sender_of"]

Address = tuple[int, bool, int]
"""The identity of a message: (receiving stage, True for a gradient, microbatch)."""

_WINDOW = 16
"""The receives posted ahead on each channel: more than a link has in flight at a time."""
_FIRST, _LOW = 2, 8
"""The receives of a channel posted at the start of a step, and kept posted while the rank computes.

Further receives are posted while the rank waits, so that posting delays no computation.
"""
_BATCH = 4
"""The number of receives that a waiting rank posts before it checks for arrived messages again."""
_REMEMBERED = 4
_NO_LIMIT = timedelta(days=365)
"""The timeout of transfers: a message is late only for a waiting rank, whose wait has a timeout."""


class Arrival(NamedTuple):
    """A message between pipeline stages that has arrived at this rank."""

    address: Address
    sent_ns: int
    """The time when the message lay in host memory, by the sender's monotonic clock."""
    arrived_ns: int
    """The time of arrival by this rank's monotonic clock."""
    nbytes: int

    @property
    def sender(self) -> Instruction:
        """The instruction that computed the message."""
        return sender_of(self.address)


@dataclass(slots=True)
class _Receive:
    address: Address
    buffer: Tensor
    header: Header | None
    """The header of a separate body; None if the buffer itself begins with a header."""


class Transport:
    """The transport of messages between the pipeline stages of one rank and neighbour stages.

    Only the computing thread uses the object.
    """

    def __init__(
        self,
        nic: Group,
        buffers: MessageBuffers,
        placement: Sequence[int],
        microbatches: int,
        first_tag: int,
        name: str = "",
    ) -> None:
        """Create a transport over `nic`, whose tags from `first_tag` on belong to the transport.

        `name` is torch's name of the group, which torch's profiles show; empty without one.
        """
        self._name = name
        self._nic, self._buffers = nic, buffers
        self._placement = placement
        self._microbatches = microbatches
        self._first_tag = first_tag
        self._step = -1
        self._past: dict[Address, deque[int]] = {}
        self._capacities: dict[Address, int] = {}
        """The bytes that both ends reserve for the body of a message."""
        self._inbox: dict[Address, Landed] = {}
        self._receives = nic.completion_queue()
        # The queue keeps the buffers of pending sends, also when the schedule is dropped.
        self._sends = nic.completion_queue()
        self._orders: dict[tuple[int, bool], Iterator[int]] = {}
        self._posted: dict[tuple[int, bool], int] = {}
        """The receives of each channel that are posted and have not ended."""

    @staticmethod
    def tags(stages: int, microbatches: int) -> int:
        """Return the number of message tags that a pipeline of this size needs."""
        return stages * 2 * microbatches * 2

    def begin(self, step: int, orders: Mapping[tuple[int, bool], Sequence[int]]) -> None:
        """Begin a pipeline step: post the first receives of each channel between two stages.

        `orders` maps a channel (receiving stage, True for gradients) to its microbatches in the
        order in which they are sent.
        """
        self._step = step
        self._inbox.clear()
        self._orders = {channel: iter(order) for channel, order in orders.items()}
        self._posted = dict.fromkeys(orders, 0)
        for channel in orders:
            self._post_receives(channel, _FIRST, up_to=_FIRST)

    def send(self, address: Address, tensors: Sequence[Tensor | None], *, inline: bool) -> int:
        """Send a stage's output tensors to a neighbour stage; return their length in bytes.

        Blocks until the send has ended only if `inline`.
        """
        stage, backward, microbatch = address
        layout = layout_of(tensors, _sender_name(address))
        capacity, nbytes = self._capacities.get(address, 0), layout.body_bytes
        buffer = self._buffers.outgoing(HEADER_BYTES + capacity)
        write_header(buffer.data_ptr(), Header(0, self._step, microbatch, layout))
        # The header is sent after the copies of the body, so its time includes no computation.
        peer, priority = self._placement[stage], not backward
        if nbytes <= capacity:
            self._buffers.fill(buffer, HEADER_BYTES, layout, tensors)
            self._post(buffer, peer, address, 0, priority, inline=inline)
        else:
            body = self._buffers.outgoing(nbytes)
            self._buffers.fill(body, 0, layout, tensors)
            self._post(buffer, peer, address, 0, priority, inline=inline)
            self._post(body, peer, address, 1, priority, inline=inline)
        self._remember(address, nbytes)
        return nbytes

    def hand_over(self, address: Address, tensors: Sequence[Tensor | None]) -> None:
        """Deliver a message between two stages of this rank, without a transfer or a copy."""
        layout_of(tensors, _sender_name(address))
        handed = [
            None if each is None else each.detach().requires_grad_(each.requires_grad)
            for each in tensors
        ]
        self._inbox[address] = lambda: handed

    def take(self, address: Address) -> list[Tensor | None]:
        """Remove and return the tensors of an arrived message between pipeline stages.

        The caller's current stream waits for the message's copy to the device.
        """
        return self._inbox.pop(address)()

    def poll(self) -> list[Arrival]:
        """Return the messages that have arrived since the previous call; do not block.

        Raises the error of a receive that has failed.
        """
        ended = self._receives.poll()
        return self._arrivals(ended) if ended else []

    def wait(self, timeout: timedelta) -> list[Arrival] | None:
        """Block for at most `timeout` until a receive has ended; return the arrived messages.

        Returns None if no receive has ended, and an empty list if only a header has arrived. Raises
        the error of a receive that has failed.
        """
        for channel in self._orders:
            while self._post_receives(channel, _BATCH, up_to=_WINDOW):
                if ended := self._receives.poll():
                    return self._arrivals(ended)
        ended = self._receives.wait(timeout)
        return self._arrivals(ended) if ended else None

    def close(self) -> None:
        """Post all queued sends and free the message buffers; no messages may follow.

        The buffer of a send that still runs is kept, at most as long as the group object. Raises
        the error of a send that has failed, unless a call of `send` has raised it.
        """
        try:
            self._buffers.close()
        finally:
            self._inbox.clear()
            self._sends.poll()

    def _arrivals(self, ended: Sequence[Completion]) -> list[Arrival]:
        found = [self._receive(each.token, each.error, each.ended_ns) for each in ended]
        return [arrival for arrival in found if arrival is not None]

    def _receive(
        self, receive: _Receive, error: BaseException | None, arrived_ns: int
    ) -> Arrival | None:
        address = receive.address
        if error is not None:
            error.add_note(f"while stage {address[0]} waited for {name_of(sender_of(address))}")
            raise error
        if receive.header is None:
            header = read_header(receive.buffer.data_ptr())
            if (header.step, header.microbatch) != (self._step, address[2]):
                raise InternalError(
                    f"expected the message of {name_of(sender_of(address))} of step {self._step}, "
                    f"but received microbatch {header.microbatch} of step {header.step}"
                )
            nbytes = header.layout.body_bytes
            if nbytes > self._capacities.get(address, 0):
                self._post_receive(address, self._buffers.incoming(nbytes), header)
                return None
            start = HEADER_BYTES
        else:
            header, start = receive.header, 0
        layout = header.layout
        self._remember(address, layout.body_bytes)
        landed = self._buffers.land(receive.buffer, start, layout)
        if address[1]:
            self._inbox[address] = landed
        else:
            wanted = [entry.needs_grad for entry in layout.entries]
            self._inbox[address] = partial(_with_gradients, landed, wanted)
        channel = address[:2]
        self._posted[channel] -= 1
        self._post_receives(channel, 2, up_to=_LOW)
        return Arrival(address, header.sent_ns, arrived_ns, layout.body_bytes)

    def _post_receives(self, channel: tuple[int, bool], most: int, *, up_to: int) -> int:
        """Post at most `most` further receives of a channel, until `up_to` are posted.

        Returns the number of new receives, 0 if all receives of the step are posted already.
        """
        wanted = min(most, up_to - self._posted[channel])
        found = list(islice(self._orders[channel], wanted)) if wanted > 0 else []
        for microbatch in found:
            address = (*channel, microbatch)
            buffer = self._buffers.incoming(HEADER_BYTES + self._capacities.get(address, 0))
            self._post_receive(address, buffer, None)
        self._posted[channel] += len(found)
        return len(found)

    def _post_receive(self, address: Address, buffer: Tensor, header: Header | None) -> None:
        receive = _Receive(address, buffer, header)
        stage, backward, _ = address
        peer = self._placement[stage + 1 if backward else stage - 1]
        part = int(header is not None)
        at, count, tag = buffer.data_ptr(), buffer.numel(), self._tag(address, part)
        operation = Operation.recv(at, count, DType.UINT8, peer, tag)
        if profiling():
            posting = partial(self._nic.post, operation, timeout=_NO_LIMIT)
            facts = self._facts(address, part, peer)
            transfer = recorded_transfer("recv", posting, False, [buffer], facts)
        else:
            transfer = self._nic.post(operation, timeout=_NO_LIMIT)
        self._receives.add(transfer, receive)

    def _post(
        self,
        buffer: Tensor,
        peer: int,
        address: Address,
        part: int,
        priority: int,
        *,
        inline: bool,
    ) -> None:
        """Post the send of a message's part: 0 begins with the header, 1 is a separate body."""
        at, count, tag = buffer.data_ptr(), buffer.numel(), self._tag(address, part)
        operation = Operation.send(at, count, DType.UINT8, peer, tag, priority=priority)

        def post() -> Transfer:
            if part == 0:
                stamp(at, time.monotonic_ns())
            transfer = self._nic.post(operation, timeout=_NO_LIMIT, blocking=inline)
            if not transfer.done():
                self._sends.add(transfer, buffer)
            return transfer

        self._sends.poll()
        if profiling():
            handing = partial(self._buffers.post, buffer, post, inline=inline)
            facts = self._facts(address, part, peer)
            recorded_transfer("send", handing, inline, [buffer], facts)
        else:
            self._buffers.post(buffer, post, inline=inline)

    def _facts(self, address: Address, part: int, peer: int) -> Facts:
        """Return the names and values that a profile shows for one part of a message."""
        return {
            "group": self._name,
            "peer": peer,
            "tag": self._tag(address, part),
            "sequence": self._step,
            "message": name_of(sender_of(address)),
        }

    def _tag(self, address: Address, part: int) -> int:
        stage, backward, microbatch = address
        return (
            self._first_tag + ((2 * stage + backward) * self._microbatches + microbatch) * 2 + part
        )

    def _remember(self, address: Address, nbytes: int) -> None:
        """Note the length of a message's body, for the capacity of the messages to come."""
        past = self._past.get(address)
        if past is None:
            past = self._past[address] = deque(maxlen=_REMEMBERED)
        past.append(nbytes)
        self._capacities[address] = max(past)


def name_of(instruction: Instruction) -> str:
    """Return an instruction's name for error messages, such as "stage 2, F0"."""
    return f"stage {instruction.stage}, {instruction.in_stage}"


@lru_cache(maxsize=4096)
def _sender_name(address: Address) -> str:
    """Return the name of the instruction that computes a message, for error messages."""
    return name_of(sender_of(address))


@lru_cache(maxsize=4096)
def sender_of(address: Address) -> Instruction:
    """Return the instruction that computes a message."""
    stage, backward, microbatch = address
    if backward:
        return Instruction(stage + 1, Kind.B, microbatch)
    return Instruction(stage - 1, Kind.F, microbatch)


def _with_gradients(landed: Landed, wanted: Sequence[bool]) -> list[Tensor | None]:
    """Return a message's tensors; autograd computes gradients for those marked in `wanted`."""
    tensors = landed()
    for tensor, want in zip(tensors, wanted, strict=True):
        if tensor is not None and want:
            tensor.requires_grad_()
    return tensors

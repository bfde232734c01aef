"""The driver of an aggregation node's registers over Ethernet.

Each request is a packet, sent again until its answer comes. The node executes each write once and
in order, whatever the wire loses, doubles or delays: see slackline.circuit.RegisterRequest.
"""

from __future__ import annotations

import secrets
import select
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from slackline.errors import InternalError

if TYPE_CHECKING:
    import socket

    from slackline.circuit import RegisterCode, RegisterRequest

__all__ = ["NodeRegisters", "NodeSilentError"]

_HEADER_BYTES = 14
_RESEND = timedelta(milliseconds=20)
_LONGEST_PACKET = 9216


class NodeSilentError(InternalError):
    """The node does not answer requests for its registers."""


class NodeRegisters:
    """The registers of a node at a MAC address. One thread at a time may use them."""

    def __init__(
        self, wire: socket.socket, host: int, node: int, addresses: Mapping[str, int]
    ) -> None:
        """Use a packet socket for the registers' EtherType, between the MACs `host` and `node`."""
        from slackline.circuit import REGISTERS_ETHERTYPE

        self._wire, self._addresses = wire, addresses
        self._host = host.to_bytes(6, "big")
        self._header = node.to_bytes(6, "big") + self._host + REGISTERS_ETHERTYPE.to_bytes(2, "big")
        self._expected = self._host + node.to_bytes(6, "big") + self._header[12:]
        self._number, self._count = secrets.randbits(32), 0

    def read(self, name: str, patience: timedelta) -> int:
        """Return the value of a register; raise NodeSilentError after `patience`."""
        from slackline.circuit import RegisterCode

        return self._ask(RegisterCode.READ, name, 0, patience).value

    def write(self, name: str, value: int, patience: timedelta) -> None:
        """Write a register once; raise NodeSilentError after `patience`."""
        from slackline.circuit import RegisterCode

        while True:
            count = (self._count + 1) & 0xFFFFFFFF
            answer = self._ask(RegisterCode.WRITE, name, value, patience, count)
            self._count = answer.count
            # The node was restarted, or another driver has written: the count was an old one.
            if answer.code is RegisterCode.DONE:
                return

    def _ask(
        self, code: RegisterCode, name: str, value: int, patience: timedelta, count: int = 0
    ) -> RegisterRequest:
        from slackline.circuit import RegisterRequest

        self._number = (self._number + 1) & 0xFFFFFFFF
        request = RegisterRequest(
            code=code,
            number=self._number,
            address=self._addresses[name],
            value=value,
            count=count,
        )
        ends = time.monotonic() + patience.total_seconds()
        while time.monotonic() < ends:
            self._wire.send((self._header + request.encode()).ljust(60, b"\0"))
            resends = min(ends, time.monotonic() + _RESEND.total_seconds())
            while (left := resends - time.monotonic()) > 0:
                if not select.select([self._wire], [], [], left)[0]:
                    break
                packet = self._wire.recv(_LONGEST_PACKET)
                if packet[:_HEADER_BYTES] != self._expected:
                    continue
                answer = RegisterRequest.decode(packet[_HEADER_BYTES:])
                if answer is not None and answer.number == self._number:
                    return answer
        raise NodeSilentError(f"the node does not answer for its register {name!r}")

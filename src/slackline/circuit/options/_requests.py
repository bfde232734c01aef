"""Requests for registers of a circuit over Ethernet, and their answers."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

__all__ = ["REGISTERS_ETHERTYPE", "REQUEST_BYTES", "RegisterCode", "RegisterRequest"]

REGISTERS_ETHERTYPE = 0x88B6
"""The second EtherType that IEEE 802 leaves to local experiments."""
_MAGIC = 0x5352
_VERSION = 1
_LAYOUT = struct.Struct("<HBBIIII")
REQUEST_BYTES = _LAYOUT.size
"""Bytes of a request or an answer behind the Ethernet header."""


class RegisterCode(IntEnum):
    """The purpose of a packet: a request of the driver, or an answer of the circuit."""

    READ = 0
    """Asks for the value of a register."""
    WRITE = 1
    """Writes a register, if `count` is one more than the writes that were executed."""
    DONE = 2
    """Answers a read, or a write that was executed now or before."""
    STALE = 3
    """Answers a write with another `count`, which was not executed."""


@dataclass(frozen=True, kw_only=True)
class RegisterRequest:
    """A request or an answer: 20 bytes, little endian.

    The circuit counts the writes that it executes, so that no write is executed twice, or after a
    later one, whatever the wire does to the packets. A driver learns the count from any answer. A
    write that comes again, with the same count, number and sender, is answered as it was before.
    """

    code: RegisterCode
    number: int = 0
    """The driver's number of the request, which the answer repeats."""
    address: int = 0
    """The register's address in bytes."""
    value: int = 0
    """The value that is written, or that was read."""
    count: int = 0
    """Of a write: its number among all writes, modulo 2^32. Of an answer: the writes that were
    executed."""

    def encode(self) -> bytes:
        """Return the bytes behind the Ethernet header."""
        return _LAYOUT.pack(
            _MAGIC, _VERSION, self.code, self.number, self.address, self.value, self.count
        )

    @classmethod
    def decode(cls, payload: bytes) -> RegisterRequest | None:
        """Return the request or answer in a packet, or None if there is none."""
        if len(payload) < REQUEST_BYTES:
            return None
        magic, version, code, number, address, value, count = _LAYOUT.unpack_from(payload)
        if (magic, version) != (_MAGIC, _VERSION) or code not in list(RegisterCode):
            return None
        return cls(
            code=RegisterCode(code), number=number, address=address, value=value, count=count
        )

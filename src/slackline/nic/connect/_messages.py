"""The messages of the handshake before a rail: HELLO frames with a JSON payload.

The bytes may come from an unauthenticated peer. Therefore every field is checked for its type and
range, and any error in a message raises LinkError or FrameError, never another exception.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import TypeVar

import slackline._native as _native
from slackline._lazy import record
from slackline.errors import FrameError, LinkError
from slackline.wire import HEADER_BYTES, FrameKind, Header, decode, encode

__all__ = [
    "LONGEST_PADDING",
    "MAC_BYTES",
    "MAX_PAYLOAD",
    "Answer",
    "Hello",
    "Mapped",
    "Message",
    "TransportParameters",
    "frame",
    "parse",
    "text_of",
    "unframe",
]

MAX_PAYLOAD = 8192
"""The longest message in bytes, without padding."""
LONGEST_PADDING = 1 << 17
"""The longest padding in bytes."""
MAC_BYTES = 32
_NONCE = re.compile(r"[0-9a-f]{64}")
_HEX = re.compile(r"(?:[0-9a-f]{2})*")
_MAX_RAILS = 1 << 12
_MAX_INTEGER = 1 << 63
_MAX_JOB = 1 << 32


def _require(good: bool, what: str) -> None:
    if not good:
        raise LinkError(f"a HELLO has a wrong {what}")


@record(frozen=True, kw_only=True)
class Hello:
    """The first message of the connecting engine: both engines' names and the wanted rail."""

    engine: str
    peer: str
    rail: int
    kind: str
    """The kind of rail: "shm", "tcp" or "udp". Two kinds make no rail: "liveness" asks the peer to
    dial and checks that its process lives, and "news" exchanges the addresses of both ends after
    the addresses of one end have changed."""
    nonce: str
    """32 fresh random bytes in hexadecimal."""
    certificate: str = ""
    """The connecting engine's certificate, DER in hexadecimal; empty without TLS."""
    lost: int = 0
    """In a "liveness" call, the number (Session.job) of the last connection of this rail, which
    the connecting engine has lost; 0 if it never had a connection of this rail."""

    def __post_init__(self) -> None:
        _require(0 <= self.lost < _MAX_JOB, "number of the lost connection")
        _require(self.kind in ("shm", "tcp", "udp", "liveness", "news"), "kind of rail")
        _require(0 <= self.rail < _MAX_RAILS, "rail")
        _require(_NONCE.fullmatch(self.nonce) is not None, "nonce")
        _require(_HEX.fullmatch(self.certificate) is not None, "certificate")


@record(frozen=True, kw_only=True)
class Answer:
    """The handshake reply of the listening engine to a Hello message."""

    engine: str
    nonce: str
    certificate: str = ""
    padding: str = ""
    """Text without meaning, with which the message tries the path with long packets."""

    def __post_init__(self) -> None:
        _require(_NONCE.fullmatch(self.nonce) is not None, "nonce")
        _require(_HEX.fullmatch(self.certificate) is not None, "certificate")


@record(frozen=True, kw_only=True)
class TransportParameters:
    """The transport parameters of one end of a rail, sent only to an authenticated peer."""

    port: int = 0
    """The port of the sender's UDP socket; 0 for other rails."""
    arena_bytes: int = 0
    """The size of the sender's arena (registered memory), whose file descriptor is sent too.

    0 for rails over TCP or UDP.
    """
    ring: int = 0
    """The offset, in the sender's arena, of the ring buffer that the sender reads from."""
    packet_bytes: int = 0
    """The largest UDP payload in bytes that the sender's NIC takes in one packet; 0 for other
    rails."""
    interfaces: str = ""
    """The sender's addresses and ports as JSON, in answer to "news"; empty otherwise."""
    refusal: str = ""
    """The reason why the listener has closed the link; empty while the link is open."""
    unmapped: str = ""
    """The reason why the sender cannot share memory with the receiver; empty if it can."""
    padding: str = ""
    """Text without meaning, with which the message tries the path with long packets."""

    def __post_init__(self) -> None:
        _require(0 <= self.port < 1 << 16, "port")
        _require(0 <= self.arena_bytes < _MAX_INTEGER, "arena size")
        _require(0 <= self.ring < _MAX_INTEGER, "ring")
        _require(0 <= self.packet_bytes < 1 << 16, "packet size")


@record(frozen=True, kw_only=True)
class Mapped:
    """The last message of a caller over shared memory: whether it has mapped the other arena."""

    unmapped: str = ""
    """The reason why the caller cannot map the listener's arena; empty if it has mapped it."""


Message = TypeVar("Message", Hello, Answer, TransportParameters, Mapped)


def parse(kind: type[Message], text: bytes) -> Message:
    """Return the message in `text`; raise LinkError if no valid message of this type is there."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LinkError("a HELLO is not JSON") from error
    names = {field.name: field.type for field in fields(kind)}
    if not isinstance(told, dict) or told.keys() != names.keys():
        raise LinkError(f"a HELLO does not have the fields of {kind.__name__}")
    for name, value in told.items():
        wanted = int if names[name] == "int" else str
        _require(type(value) is wanted, f"type of {name}")
    return kind(**told)


def text_of(message: Hello | Answer | TransportParameters | Mapped) -> bytes:
    """Return a message as JSON text, the inverse of `parse`."""
    return json.dumps(vars(message), separators=(",", ":")).encode()


def frame(payload: bytes, job: int) -> bytes:
    """Return a HELLO frame with this payload and the number `job` in its header."""
    # The first HELLO of a connection may have 5 KB, on which Python would compute for 0.5 ms.
    checksum = _native.crc32c(payload)
    header = Header(kind=FrameKind.HELLO, job=job, length=len(payload), payload_checksum=checksum)
    return encode(header) + payload


def unframe(head: bytes, *, most: int = MAX_PAYLOAD) -> Header:
    """Return the header of a HELLO frame; raise FrameError or LinkError for any other bytes.

    `most` is the longest payload in bytes that is allowed.
    """
    header = decode(head[:HEADER_BYTES])
    if header.kind is not FrameKind.HELLO:
        raise LinkError(f"the frame must be a HELLO, not {header.kind.name}")
    if header.length > most:
        raise FrameError(f"a HELLO of {header.length} bytes is too long")
    return header

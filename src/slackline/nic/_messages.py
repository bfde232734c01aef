"""What two engines say to each other before a rail: HELLO frames whose payload is JSON.

Whoever reads here may be reading a stranger's bytes: every field is checked for its type and range,
and whatever is wrong is a LinkError or a FrameError, never another exception.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from typing import TypeVar

from slackline.errors import FrameError, LinkError
from slackline.wire import HEADER_BYTES, FrameKind, Header, crc32c, decode, encode

__all__ = [
    "MAC_BYTES",
    "MAX_PAYLOAD",
    "Answer",
    "Hello",
    "Message",
    "Terms",
    "frame",
    "parse",
    "text_of",
    "unframe",
]

MAX_PAYLOAD = 4096
MAC_BYTES = 32
_NONCE = re.compile(r"[0-9a-f]{64}")
_HEX = re.compile(r"(?:[0-9a-f]{2})*")
_MAX_RAILS = 1 << 12
_MAX_INTEGER = 1 << 63


def _require(good: bool, what: str) -> None:
    if not good:
        raise LinkError(f"a HELLO has a wrong {what}")


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The caller's opening: who it is, whom it calls, which rail it wants."""

    engine: str
    peer: str
    rail: int
    kind: str
    """"shm", "tcp" or "udp"; "knock": no rail, only whether the link still lives."""
    nonce: str
    """32 bytes in hexadecimal that were never used before."""
    certificate: str = ""
    """The caller's certificate in DER, hexadecimal; empty without TLS."""

    def __post_init__(self) -> None:
        _require(self.kind in ("shm", "tcp", "udp", "knock"), "kind of rail")
        _require(0 <= self.rail < _MAX_RAILS, "rail")
        _require(_NONCE.fullmatch(self.nonce) is not None, "nonce")
        _require(_HEX.fullmatch(self.certificate) is not None, "certificate")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The listener's first word."""

    engine: str
    nonce: str
    certificate: str = ""

    def __post_init__(self) -> None:
        _require(_NONCE.fullmatch(self.nonce) is not None, "nonce")
        _require(_HEX.fullmatch(self.certificate) is not None, "certificate")


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What the other end must know to use the rail; said only to who has proven itself."""

    port: int = 0
    """Of the sender's UDP socket; 0 for other rails."""
    arena_bytes: int = 0
    """Size of the sender's arena, whose descriptor comes along; 0 on a wire."""
    ring: int = 0
    """Offset in the sender's arena of the ring that it reads."""
    refusal: str = ""
    """Why the listener has given the link up; empty while it has not."""

    def __post_init__(self) -> None:
        _require(0 <= self.port < 1 << 16, "port")
        _require(0 <= self.arena_bytes < _MAX_INTEGER, "arena size")
        _require(0 <= self.ring < _MAX_INTEGER, "ring")


Message = TypeVar("Message", Hello, Answer, Terms)


def parse(kind: type[Message], text: bytes) -> Message:
    """The message in `text`; raises LinkError when it is none."""
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


def text_of(message: Hello | Answer | Terms) -> bytes:
    """The inverse of parse."""
    return json.dumps(vars(message), separators=(",", ":")).encode()


def frame(payload: bytes, job: int) -> bytes:
    """`payload` as a HELLO frame."""
    header = Header(
        kind=FrameKind.HELLO, job=job, length=len(payload), payload_checksum=crc32c(payload)
    )
    return encode(header) + payload


def unframe(head: bytes) -> Header:
    """The header of a HELLO frame; raises FrameError or LinkError when `head` is not one."""
    header = decode(head[:HEADER_BYTES])
    if header.kind is not FrameKind.HELLO:
        raise LinkError(f"the frame is no HELLO but {header.kind.name}")
    if header.length > MAX_PAYLOAD:
        raise FrameError(f"a HELLO of {header.length} bytes is too long")
    return header

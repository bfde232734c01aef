"""The codec of frame headers: to bytes and back, with the layout taken from the table of fields."""

import struct
from dataclasses import fields
from enum import IntEnum
from typing import TypeVar

from slackline._lazy import record
from slackline.errors import FrameError, UsageError
from slackline.wire._codes import Collective, DType, FrameFlag, FrameKind, ReduceOp
from slackline.wire._crc32c import crc32c
from slackline.wire._fields import FIELDS, HEADER_BYTES, MAGIC, VERSION

__all__ = ["Header", "decode", "encode"]

_LETTERS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q"}
_LAYOUT = struct.Struct("<" + "".join(_LETTERS[field.type] for field in FIELDS))
_CHECKED_BYTES = FIELDS[-1].offset
_NO_FLAGS = FrameFlag(0)
_Code = TypeVar("_Code", bound=IntEnum)


@record(frozen=True, kw_only=True)
class Header:
    """The header fields that a sender sets; the codec adds magic number, version and checksum.

    Each field has the meaning of its row in FIELDS, with `op` and `flags` split into their parts.
    """

    kind: FrameKind
    job: int = 0
    epoch: int = 0
    source: int = 0
    dtype: DType | None = None
    collective: Collective = Collective.NONE
    reduce_op: ReduceOp = ReduceOp.NONE
    tag: int = 0
    sequence: int = 0
    acknowledge: int = 0
    offset: int = 0
    total: int = 0
    length: int = 0
    chunk: int = 0
    flags: FrameFlag = _NO_FLAGS
    plan_id: int = 0
    payload_checksum: int = 0

    def __post_init__(self) -> None:
        for name, bits in _BITS.items():
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1 << bits:
                raise UsageError(f"{name} must fit in {bits} bits, not be {value}")


_WIDTHS = {field.name: field.width for field in FIELDS} | {"flags": 1, "plan_id": 1}
_BITS = {field.name: 8 * _WIDTHS.get(field.name, 1) for field in fields(Header)}
"""The size of each field of a Header, in bits."""


def encode(header: Header) -> bytes:
    """Encode the header into 64 bytes, including its checksum."""
    values = vars(header) | {
        "magic": MAGIC,
        "version": VERSION,
        "dtype": header.dtype or 0,
        "op": header.collective << 4 | header.reduce_op,
        "flags": header.flags | header.plan_id << 8,
        "header_checksum": 0,
    }
    head = _LAYOUT.pack(*(values[field.name] for field in FIELDS))[:_CHECKED_BYTES]
    return head + crc32c(head).to_bytes(HEADER_BYTES - _CHECKED_BYTES, "little")


def decode(data: bytes | bytearray | memoryview) -> Header:
    """Decode the first 64 bytes of `data`; raise FrameError that names the wrong value."""
    if len(data) < HEADER_BYTES:
        raise FrameError(f"a frame header has {HEADER_BYTES} bytes, not {len(data)}")
    head = bytes(data[:HEADER_BYTES])
    names = (field.name for field in FIELDS)
    values: dict[str, int] = dict(zip(names, _LAYOUT.unpack(head), strict=True))
    if (magic := values.pop("magic")) != MAGIC:
        raise FrameError(f"a frame opens with 0x{MAGIC:04X}, not 0x{magic:04X}")
    if (version := values.pop("version")) != VERSION:
        raise FrameError(f"the frame has version {version}, this side speaks {VERSION}")
    said, found = values.pop("header_checksum"), crc32c(head[:_CHECKED_BYTES])
    if said != found:
        raise FrameError(f"the header's checksum is 0x{found:08X}, the frame says 0x{said:08X}")
    op, flags, dtype = values.pop("op"), values.pop("flags"), values.pop("dtype")
    return Header(
        kind=_code(FrameKind, values.pop("kind")),
        dtype=_code(DType, dtype) if dtype else None,
        collective=_code(Collective, op >> 4),
        reduce_op=_code(ReduceOp, op & 15),
        flags=FrameFlag(flags & 0xFF),
        plan_id=flags >> 8,
        **values,
    )


def _code(kind: type[_Code], value: int) -> _Code:
    try:
        return kind(value)
    except ValueError:
        raise FrameError(f"{value} is not a {kind.__name__} that this version knows") from None

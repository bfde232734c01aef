"""The table of the frame header: 64 bytes, little endian, every field naturally aligned."""

from slackline._lazy import record

__all__ = ["FIELDS", "HEADER_BYTES", "MAGIC", "VERSION", "WIDTHS", "Field"]

MAGIC = 0x4C53
"""The first two bytes of every frame: "SL" in memory order."""

VERSION = 1
"""The version of this table; frames of any other version are refused."""

WIDTHS = {"u8": 1, "u16": 2, "u32": 4, "u64": 8}
"""The size in bytes of each type that a field may have."""


@record(frozen=True, kw_only=True)
class Field:
    """A row of the table: one field of the header."""

    name: str
    offset: int
    """The field's distance in bytes from the start of the header."""
    type: str
    """The field's type, a key of WIDTHS."""
    meaning: str
    """A one-line description for the readers of the generated files."""

    @property
    def width(self) -> int:
        """The size of the field in bytes."""
        return WIDTHS[self.type]


def _rows(*rows: tuple[int, str, str, str]) -> tuple[Field, ...]:
    return tuple(Field(offset=o, type=t, name=n, meaning=m) for o, t, n, m in rows)


FIELDS = _rows(
    (0, "u16", "magic", "0x4C53"),
    (2, "u8", "version", "1"),
    (3, "u8", "kind", "a FrameKind"),
    (4, "u32", "job", "derived from the job's secret: unauthenticated peers are refused"),
    (8, "u32", "epoch", "the life of the group: frames of an earlier life are dropped"),
    (12, "u16", "source", "the sender's rank in the group"),
    (14, "u8", "dtype", "a DType, 0 for none"),
    (15, "u8", "op", "a Collective in the high four bits, a ReduceOp in the low four"),
    (16, "u64", "tag", "class in bits 63-56, user tag in 55-32, sequence within both in 31-0"),
    (24, "u32", "sequence", "counts the frames of a link from 1, 0 for not sequenced"),
    (28, "u32", "acknowledge", "cumulative: the next sequence expected from the peer"),
    (32, "u64", "offset", "bytes from the start of the chunk"),
    (40, "u64", "total", "bytes of the whole operation at this rank, to find mismatches"),
    (48, "u32", "length", "bytes of payload"),
    (52, "u16", "chunk", "the chunk's index in the operation"),
    (
        54,
        "u16",
        "flags",
        "FrameFlag in bits 0-7, the plan's id in 8-11, the shares' number in 12-15",
    ),
    (56, "u32", "payload_checksum", "CRC32C, 0 when length is 0 or the payload stays in memory"),
    (60, "u32", "header_checksum", "CRC32C over all bytes before it"),
)

HEADER_BYTES = FIELDS[-1].offset + FIELDS[-1].width
"""The size of the header in bytes."""

"""The layout of entries in a ring NIC's queues, for gateware, driver and C header alike."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

__all__ = ["COMPLETION", "DESCRIPTOR", "Code", "Entry", "Field", "c_entries", "entry_tables"]


class Code(IntEnum):
    """A completion's code: success, or the reason why the descriptor was refused."""

    DONE = 0
    DTYPE = 1
    TOTAL = 2
    FRAME_BYTES = 3
    START = 4
    RESERVED = 5
    READ = 6

    @property
    def meaning(self) -> str:
        """The code's meaning, as the end of a sentence; the C header has the same text."""
        return _MEANINGS[self]


_MEANINGS = {
    Code.DONE: "the sum is in `target`",
    Code.DTYPE: "refused: `dtype` is none that is summed",
    Code.TOTAL: "refused: `total` is 0, 2^48 or more, or no whole elements",
    Code.FRAME_BYTES: "refused: `frame_bytes` is 0, no multiple of 64, or more than a slot holds",
    Code.START: "refused: `start` is no rank",
    Code.RESERVED: "refused: a byte that must be 0 is not 0",
    Code.READ: "failed: the host's memory could not be read",
}


@dataclass(frozen=True, kw_only=True)
class Field:
    """An unsigned integer in an entry, little endian."""

    name: str
    offset: int
    """Bytes from the entry's start to the field."""
    width: int
    """Bytes of the field: 1, 2, 4 or 8."""
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The layout of one entry of a queue; bytes that belong to no field are 0."""

    name: str
    size: int
    """Bytes of the entry, a power of two."""
    fields: tuple[Field, ...]

    def pack(self, values: Mapping[str, int]) -> bytes:
        """Return the bytes of an entry with these values; fields that are not named are 0."""
        found = bytearray(self.size)
        known = {each.name: each for each in self.fields}
        for name, value in values.items():
            at = known[name]
            found[at.offset : at.offset + at.width] = value.to_bytes(at.width, "little")
        return bytes(found)

    def unpack(self, entry: bytes) -> dict[str, int]:
        """Return the values of an entry's fields, by name."""
        return {
            each.name: int.from_bytes(entry[each.offset : each.offset + each.width], "little")
            for each in self.fields
        }

    def gaps(self) -> list[tuple[int, int]]:
        """Return offset and length of each run of bytes that belongs to no field."""
        found, at = [], 0
        for each in self.fields:
            if each.offset > at:
                found.append((at, each.offset - at))
            at = each.offset + each.width
        return [*found, (at, self.size - at)] if at < self.size else found


def _entry(name: str, size: int, fields: Iterable[tuple[str, int, int, str]]) -> Entry:
    made = tuple(Field(name=n, offset=at, width=width, meaning=m) for n, at, width, m in fields)
    return Entry(name=name, size=size, fields=made)


DESCRIPTOR = _entry(
    "descriptor",
    64,
    (
        ("tag", 0, 8, "the operation's number, the same on all ranks"),
        ("source", 8, 8, "address of this rank's contribution"),
        ("target", 16, 8, "address that the sum is written to; may be `source`"),
        ("total", 24, 8, "bytes of the tensor or chunk"),
        ("frame_bytes", 32, 4, "tensor bytes in every frame but the last, the same on all ranks"),
        ("dtype", 36, 1, "the frames' code of the element type"),
        ("chunk", 38, 2, "number of the chunk; tag and chunk identify an operation"),
        ("start", 40, 2, "the rank that sends the first partial sum, the same on all ranks"),
    ),
)
"""The entry of an operation, written by the host: see RingOperation."""

COMPLETION = _entry(
    "completion",
    16,
    (
        ("tag", 0, 8, "of the operation"),
        ("chunk", 8, 2, "of the operation"),
        ("code", 10, 1, "success, or the reason of the refusal"),
        ("head", 12, 2, "the lowest bits of `descriptor_head` when this entry was written"),
        ("phase", 15, 1, "1 in the first pass through the queue, 0 in the second, and so on"),
    ),
)
"""The entry that reports the end of an operation, written by the NIC; `phase` is in the last byte
that is written."""


def c_entries(entries: Sequence[Entry], circuit: str) -> str:
    """Return the entries as structs of C, and the codes as macros."""
    return "\n".join(_c_lines(entries, circuit)) + "\n"


def _c_lines(entries: Sequence[Entry], circuit: str) -> Iterable[str]:
    yield "#include <stddef.h>"
    yield "#include <stdint.h>"
    yield ""
    yield "#ifdef __cplusplus"
    yield "#define SLACKLINE_STATIC_ASSERT(claim) static_assert(claim, #claim)"
    yield "#else"
    yield "#define SLACKLINE_STATIC_ASSERT(claim) _Static_assert(claim, #claim)"
    yield "#endif"
    for entry in entries:
        name = f"slackline_{circuit}_{entry.name}"
        yield ""
        yield f"/* In a queue in the host's memory: {entry.size} bytes, little endian. */"
        yield f"struct {name} {{"
        yield from _c_members(entry)
        yield "};"
        yield f"SLACKLINE_STATIC_ASSERT(sizeof(struct {name}) == {entry.size});"
        for each in entry.fields:
            claim = f"offsetof(struct {name}, {each.name}) == {each.offset}"
            yield f"SLACKLINE_STATIC_ASSERT({claim});"
    for code in Code:
        yield ""
        yield f"/* {code.meaning} */"
        yield f"#define SLACKLINE_{circuit.upper()}_CODE_{code.name} {code.value}u"


def _c_members(entry: Entry) -> Iterable[str]:
    gaps = dict(entry.gaps())
    found = {
        each.offset: f"uint{8 * each.width}_t {each.name}; /* {each.meaning} */"
        for each in entry.fields
    }
    found |= {at: f"uint8_t reserved_{at}[{size}]; /* 0 */" for at, size in gaps.items()}
    for at in sorted(found):
        yield f"  {found[at]}"


def entry_tables(entries: Sequence[Entry]) -> str:
    """Return the entries, and the codes, as tables in Markdown."""
    lines = []
    for entry in entries:
        lines += ["", f"| {entry.name}: byte | bytes | field | meaning |", "|---|---|---|---|"]
        lines += [f"| {f.offset} | {f.width} | {f.name} | {f.meaning} |" for f in entry.fields]
    lines += ["", "| code | meaning |", "|---|---|"]
    lines += [f"| {code.value} | {code.meaning} |" for code in Code]
    return "\n".join(lines[1:]) + "\n"

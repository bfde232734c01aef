"""The reader of one line of telemetry, which skips unknown fields and kinds of records."""

import msgspec

from slackline._checked import parse_json
from slackline.errors import UsageError
from slackline.records import COLUMNS, KINDS, Operation, Operations, Record

__all__ = ["decode"]


class _Head(msgspec.Struct):
    record: str
    """The kind of the record."""


class _Batch(msgspec.Struct):
    """The line of an `Operations` record."""

    rank: int
    lost: int
    columns: tuple[str, ...]
    rows: tuple[Operation, ...]


_HEAD = msgspec.json.Decoder(_Head)
_BATCH = msgspec.json.Decoder(_Batch)
_DECODERS: dict[str, msgspec.json.Decoder[Record]] = {
    name: msgspec.json.Decoder(kind) for name, kind in KINDS.items() if kind is not Operations
}


_BEGIN, _LATIN = b'{"record":"', "latin-1"


def decode(line: str | bytes) -> Record | None:
    """Parse a line into its record; None for a kind that this version does not know.

    Raises UsageError for a line that is no record, and for a record that lacks a field or has a
    value of another type.
    """
    line = line.encode() if isinstance(line, str) else line
    name = _named(line) or parse_json(line, _HEAD, "the record").record
    if name == "operations":
        batch = parse_json(line, _BATCH, f'the record "{name}"')
        if batch.columns != COLUMNS:
            raise UsageError(f'the columns of "operations" must be {", ".join(COLUMNS)}')
        return Operations(rank=batch.rank, lost=batch.lost, rows=batch.rows)
    decoder = _DECODERS.get(name)
    return None if decoder is None else parse_json(line, decoder, f'the record "{name}"')


def _named(line: bytes) -> str:
    """Return the kind of a record if it is a known one that stands first; else an empty string."""
    if not line.startswith(_BEGIN):
        return ""
    name = line[len(_BEGIN) : line.find(b'"', len(_BEGIN))].decode(_LATIN)
    return name if name in KINDS else ""

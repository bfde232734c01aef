"""The dictionary that torch's analyser of flight recorders, `torchfrtrace`, reads.

The fields are those of version 2.10 of the format, which torch 2.13 writes (FlightRecorder.hpp).
The analyser matches operations of one process group by `collective_seq_id`, so every order of its
own needs a process group of its own:

    NAME              collectives that are matched by the order of the calls
    NAME tagged       collectives with a tag; the number has the tag in its low 24 bits,
                      or, for one that was posted in a callback, is its whole identity
    NAME 0->2 tag 5   messages from rank 0 to rank 2 of the job with tag 5; tag 0 is left out
"""

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slackline.backend.flight._entries import Entry, GroupRecord
from slackline.backend.flight._stack import callers

__all__ = ["VERSION", "library", "name_of", "torch_format"]

VERSION = "2.10"

_STACKS = 32
"""The most call stacks of pending operations, and of failed ones; to read one takes long."""
_TAG_BITS = 24
_TYPES = {
    "FLOAT32": "Float",
    "FLOAT64": "Double",
    "FLOAT16": "Half",
    "BFLOAT16": "BFloat16",
    "INT8": "Char",
    "INT16": "Short",
    "INT32": "Int",
    "INT64": "Long",
    "UINT8": "Byte",
    "UINT16": "UInt16",
    "UINT32": "UInt32",
    "UINT64": "UInt64",
    "BOOL": "Bool",
}

_IN_PLACE_OF = {
    "barrier": "all_reduce_barrier",
    "all_gather_v": "_broadcast_oop",
    "reduce_scatter_v": "_reduce_oop",
}
"""Names that the analyser of torch 2.11 does not know, each with the name that NCCL's recorder of
that torch gives the same operation. The analyser demands the same sizes of both."""

_Place = tuple[str, tuple[int, ...]]
"""A process group of the dump: its name, and the ranks of its members in the job, sorted."""


@cache
def library() -> str:
    """Return the library that the names of operations begin with, one that the analyser knows.

    That is gloo, or nccl for an analyser that does not know gloo (torch 2.11).
    """
    known = _analyser()
    return "gloo" if not known or '"gloo"' in known else "nccl"


def name_of(kind: str) -> str:
    """Return a name for a kind of operation that the analyser knows."""
    known = _analyser()
    return _IN_PLACE_OF.get(kind, kind) if known and f'"{kind}"' not in known else kind


@cache
def _analyser() -> str:
    """Return the source text in which the analyser lists libraries and operations; "" if none."""
    components = find_spec("torch.distributed.flight_recorder.components")
    if components is None or components.origin is None:
        return ""
    return Path(components.origin).with_name("types.py").read_text()


def torch_format(
    entries: Sequence[Entry], groups: Iterable[GroupRecord], *, unix_minus_monotonic_ns: int
) -> dict[str, Any]:
    """Return the dump of `entries`, the oldest first, and of all `groups` of the process.

    `unix_minus_monotonic_ns` is the difference of the two clocks of this host.
    """
    config = {}
    for group in groups:
        name = group.name or "unnamed"
        config[name] = _config(name, group.description, tuple(sorted(group.members)))
    status: dict[str, dict[str, int]] = {}
    shown = _with_frames(entries)
    found = []
    numbers: dict[str, int] = {}
    for entry in entries:
        name, members = _place(entry)
        config[name] = _config(name, entry.group.description, members)
        row = _row(entry, name, members, unix_minus_monotonic_ns)
        row["pg_id"] = numbers.setdefault(name, len(numbers))
        row["frames"] = callers(entry.stack) if entry.number in shown else []
        found.append(row)
        state = status.setdefault(
            name,
            dict.fromkeys(
                (
                    "last_enqueued_collective",
                    "last_started_collective",
                    "last_completed_collective",
                ),
                -1,
            ),
        )
        number = row["collective_seq_id"]
        state["last_enqueued_collective"] = state["last_started_collective"] = number
        if row["state"] == "completed":
            state["last_completed_collective"] = number
    return {
        "version": VERSION,
        "comm_lib_version": "slackline",
        "pg_config": config,
        "pg_status": status,
        "entries": found,
    }


def _config(name: str, description: str, members: Sequence[int]) -> dict[str, str]:
    return {"name": name, "desc": description, "ranks": str(list(members))}


def _place(entry: Entry) -> _Place:
    group = entry.group
    name = group.name or "unnamed"
    if entry.kind not in ("send", "recv"):
        whole = tuple(sorted(group.members))
        return (name if entry.tag is None else f"{name} tagged"), whole
    mine = group.members[group.rank]
    suffix = f" tag {entry.tag}" if entry.tag else ""
    if entry.peer < 0:
        return f"{name} any->{mine}{suffix}", (mine,)
    other = group.members[entry.peer]
    source, target = (mine, other) if entry.kind == "send" else (other, mine)
    return f"{name} {source}->{target}{suffix}", tuple(sorted({mine, other}))


def _row(entry: Entry, name: str, members: Sequence[int], offset_ns: int) -> dict[str, Any]:
    message = entry.kind in ("send", "recv")
    number = entry.sequence
    if not message and entry.tag is not None:
        number = entry.sequence << _TAG_BITS | entry.tag
    dtype = [] if entry.dtype is None else [_TYPES[entry.dtype.name]]
    completed = entry.ended and not entry.failure
    row: dict[str, Any] = {
        "record_id": entry.number,
        "process_group": (name, entry.group.description),
        "collective_seq_id": number,
        "p2p_seq_id": number if message else 0,
        "op_id": entry.number,
        "profiling_name": f"{library()}:{_named(entry, members)}",
        "time_created_ns": entry.created_ns,
        "input_sizes": [list(size) for size in entry.inputs],
        "input_dtypes": dtype if entry.inputs else [],
        "output_sizes": [list(size) for size in entry.outputs],
        "output_dtypes": dtype if entry.outputs else [],
        # A failed operation has not completed; torch's recorder says "started" of it, too.
        "state": "completed" if completed else "started",
        "time_discovered_started_ns": entry.created_ns,
        "time_discovered_completed_ns": (
            entry.ended_ns + offset_ns if completed and entry.ended_ns else None
        ),
        "retired": entry.ended,
        "timeout_ms": entry.timeout_ms,
        "is_p2p": message,
    }
    if entry.failure:
        row["error"] = entry.failure
    return row


def _named(entry: Entry, members: Sequence[int]) -> str:
    """Return the operation's name; of a message also both ends, as indices into `members`."""
    if entry.kind not in ("send", "recv"):
        return name_of(entry.kind)
    ranks = entry.group.members
    mine = members.index(ranks[entry.group.rank])
    other = mine if entry.peer < 0 else members.index(ranks[entry.peer])
    return f"{entry.kind} {mine}{'->' if entry.kind == 'send' else '<-'}{other}"


def _with_frames(entries: Sequence[Entry]) -> set[int]:
    """Return the numbers of the operations whose call stacks are in the dump.

    These are the oldest operations that have not ended and the latest ones that have failed.
    """
    kept = [entry for entry in entries if entry.stack is not None]
    pending = [entry for entry in kept if not entry.ended][:_STACKS]
    failed = [entry for entry in kept if entry.ended][-_STACKS:]
    return {entry.number for entry in pending + failed}

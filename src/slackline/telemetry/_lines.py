"""One record as one line of JSON, and back.

The key "record" tells the kind. Keys that a reader does not know are skipped, and so are whole
kinds, so that an older reader can follow a newer writer.
"""

import json
from dataclasses import MISSING, asdict, fields
from typing import Any

from slackline.errors import UsageError
from slackline.telemetry._records import (
    Counters,
    LinkVerdict,
    PipelineStep,
    Record,
    RunSummary,
    StepSummary,
)

__all__ = ["decode", "encode"]

_KINDS: dict[str, type[Record]] = {
    "step": StepSummary,
    "counters": Counters,
    "run": RunSummary,
    "verdict": LinkVerdict,
    "pipeline": PipelineStep,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def encode(record: Record) -> str:
    """The record's line, without the line's end."""
    return json.dumps({"record": _NAMES[type(record)], **asdict(record)}, separators=(",", ":"))


def decode(line: str) -> Record | None:
    """The record of a line; None for a kind that this version does not know.

    Raises UsageError for a line that is no record, and for one that lacks a field.
    """
    try:
        given = json.loads(line)
    except ValueError:
        raise UsageError(f"a telemetry line must be JSON, not {line[:80]!r}") from None
    if not isinstance(given, dict) or "record" not in given:
        raise UsageError(f'a telemetry line must be an object with "record", not {line[:80]!r}')
    kind = _KINDS.get(given["record"])
    if kind is None:
        return None
    values: dict[str, Any] = {}
    for item in fields(kind):
        if item.name in given:
            value = given[item.name]
            values[item.name] = tuple(value) if isinstance(value, list) else value
        elif item.default is MISSING and item.default_factory is MISSING:
            raise UsageError(f'a "{given["record"]}" record must have {item.name!r}')
    return kind(**values)

"""The JSON form of telemetry: one record is one line.

The field "record" names the kind of the record. A reader skips fields and kinds that it does not
know, so that an older reader can follow a newer writer.
"""

import json
from dataclasses import MISSING, fields
from typing import Any

from slackline.errors import UsageError
from slackline.records._operations import COLUMNS, Operations, rows_from
from slackline.records._records import (
    ClockOffset,
    Counters,
    Decision,
    FileHeader,
    Gap,
    GroupOpened,
    LinkReport,
    LinkVerdict,
    PipelineStep,
    Promise,
    RailChange,
    Record,
    RunSummary,
    Setting,
    StepSummary,
)

__all__ = ["decode", "encode"]

_KINDS: dict[str, type[Record]] = {
    "file": FileHeader,
    "gap": Gap,
    "clock": ClockOffset,
    "link": LinkReport,
    "decision": Decision,
    "setting": Setting,
    "operations": Operations,
    "step": StepSummary,
    "opened": GroupOpened,
    "counters": Counters,
    "run": RunSummary,
    "verdict": LinkVerdict,
    "pipeline": PipelineStep,
    "promise": Promise,
    "rail": RailChange,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def encode(record: Record) -> str:
    """Return the record as a line of JSON, without the newline; fields of None are left out."""
    if isinstance(record, Operations):  # The rows are JSON already.
        columns = json.dumps(COLUMNS, separators=(",", ":"))
        return (
            f'{{"record":"operations","rank":{record.rank},"lost":{record.lost},'
            f'"columns":{columns},"rows":[{record.rows}]}}'
        )
    known = {name: value for name, value in vars(record).items() if value is not None}
    return json.dumps({"record": _NAMES[type(record)], **known}, separators=(",", ":"))


def decode(line: str) -> Record | None:
    """Parse a line into its record; None for a kind that this version does not know.

    Raises UsageError for a line that is no record, and for a record that lacks a field.
    """
    try:
        given = json.loads(line)
    except ValueError:
        raise UsageError(f"a telemetry line must be JSON, not {line[:80]!r}") from None
    except RecursionError:
        raise UsageError(f"a telemetry line is nested too deeply: {line[:80]!r}") from None
    if not isinstance(given, dict) or "record" not in given:
        raise UsageError(f'a telemetry line must be an object with "record", not {line[:80]!r}')
    name = given["record"]
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        return None
    if kind is Operations and given.get("columns") != list(COLUMNS):
        raise UsageError(f'the columns of "operations" must be {", ".join(COLUMNS)}')
    values: dict[str, Any] = {}
    for item in fields(kind):
        if item.name in given:
            value = given[item.name]
            if kind is Operations and item.name == "rows":
                try:
                    value = rows_from(value)
                except ValueError as error:
                    raise UsageError(f'an "operations" record is wrong: {error}') from None
            values[item.name] = tuple(value) if isinstance(value, list) else value
        elif item.default is MISSING and item.default_factory is MISSING:
            raise UsageError(f'a "{given["record"]}" record must have {item.name!r}')
    return kind(**values)

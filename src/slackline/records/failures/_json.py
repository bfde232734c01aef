"""The JSON form of a report.

A reader skips fields that it does not know, so that an older reader understands a newer writer of
the same version.
"""

import json
from dataclasses import MISSING, asdict, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from slackline.errors import UsageError
from slackline.records.failures._schema import REPORT_VERSION, Report

__all__ = ["decode", "encode"]


def encode(report: Report) -> str:
    """Return the report as JSON."""
    return json.dumps(asdict(report), separators=(",", ":"))


def decode(text: str) -> Report:
    """Parse a report. Raises UsageError for text that is no report of this version."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError("the report is cut or damaged: it is no JSON") from None
    if not isinstance(given, dict) or "version" not in given:
        raise UsageError('the report is damaged: it has no "version"')
    if given["version"] != REPORT_VERSION:
        raise UsageError(
            f"the report has version {given['version']!r} of the schema, and this slackline reads "
            f"version {REPORT_VERSION}"
        )
    report = _build(Report, given, "report")
    assert isinstance(report, Report)
    return report


def _build(kind: Any, given: object, where: str) -> Any:
    """Return `given` as an object of the type `kind`; `where` names the place for errors."""
    if is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(given, dict):
            raise _damaged(where, "an object", given)
        hints = get_type_hints(kind)
        values = {}
        for item in fields(kind):
            if item.name in given:
                place = f"{where}.{item.name}"
                values[item.name] = _build(hints[item.name], given[item.name], place)
            elif item.default is MISSING and item.default_factory is MISSING:
                raise UsageError(f"the report is damaged: {where} has no {item.name!r}")
        return kind(**values)
    if get_origin(kind) is tuple:
        if not isinstance(given, list):
            raise _damaged(where, "a list", given)
        return tuple(_build(get_args(kind)[0], each, where) for each in given)
    if get_origin(kind) is dict:
        if not isinstance(given, dict) or not all(isinstance(v, str) for v in given.values()):
            raise _damaged(where, "an object of texts", given)
        return dict(given)
    if type(given) is not kind:
        raise _damaged(where, f"of the type {kind.__name__}", given)
    return given


def _damaged(where: str, wanted: str, given: object) -> UsageError:
    return UsageError(f"the report is damaged: {where} must be {wanted}, not {str(given)[:80]!r}")

"""The panels of findings, decisions and problems, as sentences."""

from dataclasses import dataclass
from typing import Any

from slackline.monitor import Job
from slackline.telemetry import Decision

__all__ = ["messages", "problems"]

_MOST = 200
_SAME_NS = 10_000_000_000
"""The longest time between the first and a further rank's record of one common decision."""


@dataclass(slots=True)
class _Common:
    """A decision that one or more ranks have recorded."""

    first: Decision
    ranks: list[int]


def messages(job: Job) -> dict[str, Any]:
    """Return findings and decisions, newest first, each with its Unix time and a sentence.

    A decision that several ranks have recorded is one message. At most 200 are returned.
    """
    found: list[tuple[int, str, str]] = [
        (each.time_ns, "finding", each.sentence) for each in job.findings
    ]
    found += [(each.first.time_ns, "decision", _sentence(each)) for each in _merged(job)]
    found.sort(key=lambda each: -each[0])
    return {
        "messages": [
            {"time_s": time_ns / 1e9, "kind": kind, "text": text}
            for time_ns, kind, text in found[:_MOST]
        ]
    }


def problems(job: Job) -> dict[str, Any]:
    """Return sentences about telemetry that is missing or cannot be read."""
    cut = [
        f"{path}: the last line is cut; it may still be written" for path in sorted(job.unfinished)
    ]
    return {"problems": [*job.problems, *cut]}


def _merged(job: Job) -> list[_Common]:
    """Return the decisions; equal ones of several ranks within ten seconds are one."""
    merged: list[_Common] = []
    latest: dict[tuple[str, str, str], _Common] = {}
    for each in sorted(job.decisions, key=lambda decision: decision.time_ns):
        text = each.subject, each.choice, each.reason
        same = latest.get(text)
        if same is None or each.rank in same.ranks or each.time_ns - same.first.time_ns > _SAME_NS:
            same = latest[text] = _Common(each, [])
            merged.append(same)
        same.ranks.append(each.rank)
    return merged


def _sentence(common: _Common) -> str:
    first, ranks = common.first, sorted(common.ranks)
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    reason = f" ({first.reason})" if first.reason else ""
    return f"{who}, {first.subject}: {first.choice}{reason}"

"""Decisions that several ranks have made in common."""

from collections.abc import Iterable
from dataclasses import dataclass

from slackline.records import Decision

__all__ = ["CommonDecision", "common_decisions"]

_SAME_NS = 10_000_000_000
"""The longest time between the first and a further rank's record of one common decision."""


@dataclass(slots=True)
class CommonDecision:
    """A decision that one or more ranks have recorded."""

    first: Decision
    """The earliest record."""
    ranks: list[int]
    """The ranks in rising order."""


def common_decisions(decisions: Iterable[Decision]) -> list[CommonDecision]:
    """Merge equal decisions of several ranks within ten seconds, in the order of their times.

    A decision that a rank has made twice has two entries.
    """
    merged: list[CommonDecision] = []
    latest: dict[tuple[str, str, str], CommonDecision] = {}
    for each in sorted(decisions, key=lambda decision: decision.time_ns):
        text = each.subject, each.choice, each.reason
        same = latest.get(text)
        if same is None or each.rank in same.ranks or each.time_ns - same.first.time_ns > _SAME_NS:
            same = latest[text] = CommonDecision(each, [])
            merged.append(same)
        same.ranks.append(each.rank)
        same.ranks.sort()
    return merged

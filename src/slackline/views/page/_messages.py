"""The panels of causes, findings, decisions and problems, as sentences."""

from typing import Any

from slackline.causes import Spell, Watch
from slackline.history import CommonDecision, Job, common_decisions

__all__ = ["messages", "problems"]

_MOST = 200


def messages(watch: Watch) -> dict[str, Any]:
    """Return causes of slow steps, findings and decisions, newest first, with their Unix times.

    A cause holds from `time_s` until `over_s`, which is None while it holds. The findings that a
    cause explains are in its list `findings` and nowhere else. A single slow link has findings and
    no cause. A decision that several ranks have recorded is one message. At most 200 messages are
    returned, and at most 200 causes with 200 findings each.
    """
    job = watch.job
    named = [each for each in reversed(watch.spells) if not each.cause.told_by_verdicts]
    causes = [_cause(each) for each in named[:_MOST]]
    found: list[tuple[int, str, str]] = []
    for finding in job.findings:
        owner = next((at for at, each in enumerate(named) if each.explains(finding)), None)
        if owner is None:
            found.append((finding.time_ns, "finding", finding.sentence))
        elif owner < len(causes) and len(causes[owner]["findings"]) < _MOST:
            causes[owner]["findings"].insert(0, _message(finding.time_ns, finding.sentence))
    found += [
        (each.first.time_ns, "decision", _sentence(each))
        for each in common_decisions(job.decisions)
    ]
    found.sort(key=lambda each: -each[0])
    return {
        "causes": causes,
        "messages": [
            {**_message(time_ns, text), "kind": kind} for time_ns, kind, text in found[:_MOST]
        ],
    }


def problems(job: Job) -> dict[str, Any]:
    """Return sentences about telemetry that is missing or cannot be read."""
    cut = [
        f"{path}: the last line is cut; it may still be written" for path in sorted(job.unfinished)
    ]
    return {"problems": [*job.problems, *cut]}


def _cause(spell: Spell) -> dict[str, Any]:
    cause, over_ns = spell.cause, spell.until_ns
    return {
        **_message(cause.since_ns, cause.sentence),
        "over_s": None if over_ns is None else over_ns / 1e9,
        "kind": cause.kind.value,
        "findings": [],
    }


def _message(time_ns: int, text: str) -> dict[str, Any]:
    return {"time_s": time_ns / 1e9, "text": text}


def _sentence(common: CommonDecision) -> str:
    first, ranks = common.first, common.ranks
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    reason = f" ({first.reason})" if first.reason else ""
    return f"{who}, {first.subject}: {first.choice}{reason}"

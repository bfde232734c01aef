"""A run in ten lines: the same in `slackline run`, in `slackline why` and on the page."""

from dataclasses import dataclass
from statistics import median

from slackline.causes import Kind, Recurrence, Watch, hosts_of, recurrences, sites_of
from slackline.history import Job, OperationTotals, Promised, Rank, disturbances
from slackline.records import Decision
from slackline.units import count, show_bytes, show_number, show_percent, show_time

__all__ = ["Line", "summary_of"]

_MOST = 3
"""The most parts that a line names; it counts the others."""

_RECENT = 50
"""The number of latest steps whose median is the present pace."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the summary: a fact about the run and its name."""

    name: str
    """The name of the fact: "steps"."""
    text: str
    """The fact in words: "120, 12.3 ms each at the median"."""


def summary_of(watch: Watch) -> list[Line]:
    """Return the state of a job, or the sum of one that has ended, in ten lines at most.

    The lines follow from the records alone. A fact that the records do not have is left out.
    """
    job = watch.job
    if not job.ranks:
        return [Line("job", "no rank has written a record yet")]
    named = recurrences(watch.spells)
    slow = [each for each in named if each.cause.kind is not Kind.DEAD]
    found = {
        "job": _size(job),
        "steps": "; ".join(filter(None, (_steps(job), _hash(job)))),
        "exposed": _exposed(job),
        "operations": _operations(job),
        "links": _links(job),
        "disturbed": _disturbed(job),
        "slow": _few([_cause(each) for each in slow]) or "no cause of slow steps",
        "deaths": _deaths(job, named),
        "decisions": _decisions(job),
        "promised": _promised(job),
    }
    return [Line(name, text) for name, text in found.items() if text]


def _size(job: Job) -> str:
    ranks = list(job.ranks.values())
    size = f"{count(job.world_size, 'rank')} on {count(len(hosts_of(job)), 'host')}"
    lasted_ns = max(rank.seen_ns for rank in ranks) - job.begun_ns
    ended = sum(rank.ended for rank in ranks)
    state = "ended" if ended == job.world_size else f"{ended} of {job.world_size} ended"
    return f"{size}, {show_time(lasted_ns)}{f', {state}' if ended else ''}"


def _steps(job: Job) -> str:
    counts = [_steps_of(rank) for rank in job.ranks.values()]
    walls = [wall_ns for rank in job.ranks.values() if (wall_ns := _pace(rank)[0])]
    if not walls:
        return ""
    least, most = min(counts), max(counts)
    number = f"{most}" if least == most else f"{least} to {most}"
    wall_ns = median(walls)
    return (
        f"{number}, {show_time(wall_ns)} each at the median ({show_number(1e9 / wall_ns)} a second)"
    )


def _hash(job: Job) -> str:
    if job.state_hash is None:
        return ""
    step, text, exact = job.state_hash
    return f"hash {text} after step {step}{'' if exact else ', which holds for these ranks alone'}"


def _exposed(job: Job) -> str:
    paces = [pace for rank in job.ranks.values() if (pace := _pace(rank))[0]]
    if not paces:
        return ""
    exposed_ns = median(each for _, each in paces)
    share = median(each / wall_ns for wall_ns, each in paces)
    waited = "communication" if any(rank.steps for rank in job.ranks.values()) else "other stages"
    return f"{show_time(exposed_ns)} of a step wait for {waited} ({show_percent(share)})"


def _pace(rank: Rank) -> tuple[float, float]:
    """Return the median wall time and the median exposed time of a rank's latest steps."""
    if rank.steps or not rank.pipeline:
        step = rank.median_step(_RECENT)
        return step.wall_ns, step.exposed_ns
    recent = list(rank.pipeline)[-_RECENT:]
    return median(s.wall_ns for s in recent), median(s.waiting_ns for s in recent)


def _steps_of(rank: Rank) -> int:
    return rank.step_count if rank.steps or not rank.pipeline else rank.pipeline_count


def _operations(job: Job) -> str:
    sums: dict[str, OperationTotals] = {}
    for rank in job.ranks.values():
        for kind, totals in rank.totals.items():
            mine = sums.setdefault(kind, OperationTotals())
            mine.count = max(mine.count, totals.count)
            mine.failed += totals.failed
            mine.bytes = max(mine.bytes, totals.bytes)
    kinds = sorted(sums, key=lambda kind: -sums[kind].bytes)
    text = _few([f"{sums[kind].count} {kind} ({show_bytes(sums[kind].bytes)})" for kind in kinds])
    failed = sum(each.failed for each in sums.values())
    return f"{text}; {failed} failed" if failed else text


def _links(job: Job) -> str:
    if not job.links:
        kinds = sorted({kind for rank in job.ranks.values() for kind in rank.rails})
        return f"over {' and '.join(kinds)}" if kinds else ""
    kinds = sorted({link.latest.kind for link in job.links.values()})
    pairs = {(min(rank, peer), max(rank, peer)) for rank, peer, _ in job.links}
    sent = sum(link.packets for link in job.links.values())
    resent = sum(link.resent for link in job.links.values())
    trips = [each for link in job.links.values() if (each := link.least_round_trip_ns)]
    parts = [f"{count(len(pairs), 'link')} over {' and '.join(kinds)}"]
    if trips:
        least, most = show_time(min(trips)), show_time(max(trips))
        parts.append(f"round trips of {least} to {most}")
    if sent:
        parts.append(f"{show_percent(resent / sent)} of the packets sent again")
    if apart := sites_of(job):
        parts.append(apart)
    return ", ".join(parts)


def _disturbed(job: Job) -> str:
    found = disturbances(job.episodes, job.links)
    return _few(
        [
            f"link {each.name} {each.condition} "
            f"{f'{each.times} times, ' if each.times > 1 else ''}{each.total}"
            for each in sorted(found, key=lambda each: -each.lasted_ns)
        ]
    )


def _cause(each: Recurrence) -> str:
    """Return a cause with its times: "NIC 0 of host 2 (to the end)"."""
    if each.until_ns is None and each.times == 1:
        return f"{each.cause.name} (to the end)"
    return f"{each.cause.name} ({f'{each.times} times, ' if each.times > 1 else ''}{each.total})"


def _deaths(job: Job, named: list[Recurrence]) -> str:
    dead = [each.cause.name for each in named if each.cause.kind is Kind.DEAD]
    restarted = [
        f"rank {rank.number} started {rank.processes} times"
        for rank in job.ranks.values()
        if rank.processes > 1
    ]
    return _few([*dead, *restarted])


def _decisions(job: Job) -> str:
    latest = {each.subject: each for each in job.decisions}
    return _few([_choice(each) for each in latest.values()])


def _choice(each: Decision) -> str:
    """Return a choice with the first part of its reason, which ends at a semicolon."""
    named = each.choice.startswith(each.subject)
    choice = each.choice if named else f"{each.subject}: {each.choice}"
    why = each.reason.partition(";")[0]
    return f"{choice} ({why})" if why else choice


def _promised(job: Job) -> str:
    kept: list[Promised] = [each for rank in job.ranks.values() for each in rank.promises]
    measured = [each for each in kept if each.measured_ns is not None]
    if not measured:
        return ""
    last = max(measured, key=lambda each: each.promise.time_ns)
    promised, measured_time = show_time(last.promise.wall_ns), show_time(last.measured_ns or 0)
    return f"{promised} a step, measured {measured_time} ({last.promise.choice})"


def _few(parts: list[str]) -> str:
    """Return a few parts as one text, which ends with the number of the others."""
    more = len(parts) - _MOST
    shown = parts if more <= 1 else [*parts[:_MOST], f"{more} more"]
    return "; ".join(shown)

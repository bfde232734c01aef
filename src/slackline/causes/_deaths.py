"""Dead ranks, from the word of engines, failed operations and the ends of telemetry files.

A rank that is killed writes no final counters. The engines of other ranks find that its process has
ended, unless its host is gone too. Then the other ranks write on: their operations fail, or
their links to the rank are silent, and a rank whose own operation failed was alive at that time. A
launcher that ends all ranks after the death of one may end a rank before it writes its failure; the
file of stacks that a rank leaves at SIGTERM tells it from the rank that died first.
"""

from collections.abc import Iterable

from slackline.causes._cause import Cause, Kind
from slackline.causes._hosts import Layout
from slackline.history import Job, Rank, read_dumps
from slackline.units import show_time

__all__ = ["FOUND_NS", "dead_ranks"]

FOUND_NS = 100_000_000
"""The time that the last records of a rank have to be read after others have found its end."""

_SILENT_NS = 2_000_000_000
"""The time without a record after which a rank may be dead. Running ranks write every second."""


def dead_ranks(job: Job, plan: Layout, now_ns: int) -> tuple[list[Cause], set[int]]:
    """Return the ranks that are dead, or stand still, at the Unix time `now_ns`.

    The second value has these ranks and those that were ended after the death of another one.
    """
    reasons = {}
    found_out = set()
    for rank in job.ranks.values():
        alive = rank.leaving or rank.header is None or rank.counters is not None
        if rank.ended_by and not alive:
            told = min(rank.ended_by, key=lambda each: rank.ended_by[each])
            if now_ns - rank.ended_by[told] >= FOUND_NS:
                reasons[rank.number] = f"rank {told} has found that its process has ended"
                found_out.add(rank.number)
            continue
        quiet_ns = now_ns - rank.seen_ns
        if rank.header is None or rank.counters is not None or quiet_ns < _SILENT_NS:
            continue
        if rank.failed_ns > rank.seen_ns - _SILENT_NS:
            continue
        failed = [each.number for each in job.ranks.values() if _failed_after(each, rank)]
        if failed:
            reasons[rank.number] = f"operations of {_numbers(failed)} failed"
        elif _unreachable(job, plan, rank):
            reasons[rank.number] = "all of its links are silent"
    gone = set(reasons)
    if len(gone) > 1:
        first = gone - _terminated(job, gone)
        reasons = {rank: reason for rank, reason in reasons.items() if rank in first or not first}
    causes = [
        _cause(job, job.ranks[rank], reason, now_ns, at_once=rank in found_out)
        for rank, reason in reasons.items()
    ]
    return causes, gone


def _terminated(job: Job, ranks: Iterable[int]) -> set[int]:
    """Return the ranks whose processes wrote their stacks because they got SIGTERM."""
    dumps, _ = read_dumps(job.directory)
    found = set()
    for rank in ranks:
        dump, header = dumps.get(rank), job.ranks[rank].header
        if dump is None or header is None or dump.process != header.process:
            continue
        if dump.terminated:
            found.add(rank)
    return found


def _cause(job: Job, rank: Rank, reason: str, now_ns: int, *, at_once: bool) -> Cause:
    links = frozenset(
        (each.source, each.target, each.rail)
        for each in job.open_episodes
        if rank.number in (each.source, each.target)
    )
    return Cause(
        kind=Kind.DEAD,
        name=f"rank {rank.number}",
        ranks=(rank.number,),
        since_ns=rank.seen_ns,
        at_once=at_once,
        links=links,
        sentence=f"rank {rank.number}: it is dead: {reason}"
        if at_once
        else (
            f"rank {rank.number}: it is dead or stands still: {reason}, and it has written "
            f"nothing for {show_time(now_ns - rank.seen_ns)}"
        ),
    )


def _failed_after(other: Rank, rank: Rank) -> bool:
    """Return whether an operation of another rank failed about when `rank` wrote its last record.

    A record may be younger than the failure that it reports by the time of one batch of records.
    """
    return other is not rank and other.failed_ns > rank.seen_ns - _SILENT_NS


def _unreachable(job: Job, plan: Layout, rank: Rank) -> bool:
    """Return whether all peers that report about links of `rank` report them as silent or cut.

    A rank that has reported so itself was alive when its links broke.
    """
    mine = [each for each in job.open_episodes if rank.number in (each.source, each.target)]
    if any(each.told_by == rank.number and each.condition.broken for each in mine):
        return False  # The rank has outlived its links.
    peers = {each for each, peer, _ in job.links if peer == rank.number}
    told = {each.told_by for each in mine if each.condition.broken and each.told_by != rank.number}
    return bool(peers) and peers <= told


def _numbers(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"

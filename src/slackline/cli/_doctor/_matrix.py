"""Outliers among the measured transfers: directions and ranks that are slower than the others."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackline.cli._doctor._finding import Finding, Level
from slackline.cli._doctor._transfers import Measured
from slackline.units import show_rate, show_time

__all__ = ["Matrix", "findings", "latency", "link_findings", "rate"]

_SLOW = 0.5
"""The share of the median bandwidth below which a direction counts as slow."""

_LATE = 3.0
_LEAST_LATE_NS = 1_000_000
"""The limits above which a latency counts as late: a multiple of the median, and an excess in ns.

A latency must exceed both.
"""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """The measured transfers over one kind of rail, a row and a column for each rank.

    A rail is a path to a peer: a TCP or UDP socket, or a ring in shared memory. `hosts[i]` is the
    host of rank i. The keys of `measured` are (sending rank, receiving rank).
    """

    rails: str
    hosts: Sequence[str]
    measured: Mapping[tuple[int, int], Measured]


def findings(matrix: Matrix) -> list[Finding]:
    """Report each slow or late direction or rank; if there is none, report the medians.

    Between ranks of one host an outlier is only a note, because there is no cable to repair.
    """
    name = f"transfers over {matrix.rails}"
    measured = matrix.measured
    if not measured:
        return [Finding(name=name, value="one rank has no links")]
    usual = statistics.median(each.bytes_per_second for each in measured.values())
    usual_ns = statistics.median(each.latency_ns for each in measured.values())
    value = f"{rate(usual)} and {latency(usual_ns)} in the median"
    slow = {
        ends: f"carries {rate(each.bytes_per_second)}, the median {rate(usual)}"
        for ends, each in measured.items()
        if each.bytes_per_second < _SLOW * usual
    }
    late = {
        ends: f"takes {latency(each.latency_ns)} one way, the median {latency(usual_ns)}"
        for ends, each in measured.items()
        if each.latency_ns > _LATE * usual_ns and each.latency_ns - usual_ns > _LEAST_LATE_NS
    }
    found = [
        *_strange(matrix, name, slow, "slow"),
        *_strange(matrix, name, {e: w for e, w in late.items() if e[0] < e[1]}, "late"),
    ]
    return found or [Finding(name=name, value=value)]


def link_findings(hosts: Sequence[str], reports: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Report each link and NIC between hosts that is unlike the others, as a running job would.

    `hosts` has the host of each rank; `reports` are the fields of the ranks' reports on their
    rails. The result is empty without such a link.
    """
    from slackline.causes import compare_links
    from slackline.records import LinkReport

    return [
        Finding(
            name=cause.name,
            value=cause.sentence.removeprefix(f"{cause.name}: "),
            level=Level.MEND,
            advice=f"{cause.name}: look at {cause.look_at}",
        )
        for cause in compare_links(hosts, (LinkReport(**each) for each in reports))
    ]


def rate(bytes_per_second: float) -> str:
    """Format a bandwidth in bits per second with a unit, for example "9.41 Gbit/s"."""
    return show_rate(8 * bytes_per_second)


def latency(ns: float) -> str:
    """Format a duration in nanoseconds with a unit, for example "12.3 us"."""
    return show_time(ns)


def _strange(
    matrix: Matrix, name: str, which: Mapping[tuple[int, int], str], word: str
) -> list[Finding]:
    """Return a finding for each rank with all links affected, and for each other affected link.

    `which` has a sentence for each affected direction; `word` is "slow" or "late".
    """
    left = dict(which)
    found = []
    ranks = range(len(matrix.hosts))
    for rank in ranks:
        for side, verb in enumerate(("sends", "receives")):
            mine = {ends for ends in left if ends[side] == rank}
            if len(mine) == len(matrix.hosts) - 1 > 1:
                found.append(_of_rank(matrix, name, rank, verb, word))
                left = {ends: words for ends, words in left.items() if ends not in mine}
    found += [_of_link(matrix, name, ends, words) for ends, words in left.items()]
    return found


def _of_rank(matrix: Matrix, name: str, rank: int, verb: str, word: str) -> Finding:
    host = matrix.hosts[rank]
    several = len(set(matrix.hosts)) > 1
    return Finding(
        name=name,
        value=f"rank {rank} on {host} {verb} {'slowly' if word == 'slow' else 'late'}",
        level=Level.MEND if several else Level.NOTE,
        advice=f"all links of rank {rank} are {word} where it {verb}: look at {host}'s NIC, its "
        "cable and its load",
        command="ip -s link; ethtool NIC" if several else "top",
    )


def _of_link(matrix: Matrix, name: str, ends: tuple[int, int], words: str) -> Finding:
    source, target = (matrix.hosts[rank] for rank in ends)
    several = source != target
    where = f"from {source} to {target}" if several else f"within {source}"
    return Finding(
        name=name,
        value=f"link {ends[0]}>{ends[1]} {words}",
        level=Level.MEND if several else Level.NOTE,
        advice=f"link {ends[0]}>{ends[1]} {where} is not like the others: "
        + ("look at the path between them" if several else "something else used the machine"),
        command=f"tracepath {target}" if several else "top",
    )

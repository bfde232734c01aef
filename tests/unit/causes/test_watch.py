"""Tests of a job that is diagnosed while its ranks write, and afterwards."""

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from invented_records import counters, header, opened, verdict
from made_records import SECOND_NS as S
from made_records import START_NS, link, write

from slackline.causes import Kind, Watch
from slackline.errors import UsageError
from slackline.history import Job
from slackline.records import Record

_QUARTER_NS = S // 4


def _records(rank: int) -> list[tuple[int, Record]]:
    """Return the records of one of four hosts; rank 2's links are silent from 10 s to 15 s."""
    found: list[tuple[int, Record]] = [(0, header(rank)), (0, opened(rank, 4))]
    for second in range(1, 21):
        for source, target in permutations(range(4), 2):
            if source == rank:
                found.append((second * S, link(source, target, second * S)))
                condition = {10: "silent", 15: "back"}.get(second)
                if condition is not None and 2 in (source, target):
                    found.append((second * S, verdict(source, target, second * S, condition)))
    return [*found, (21 * S, counters(rank, 21 * S))]


def _write(directory: Path, since_ns: int, until_ns: int) -> None:
    """Add the records of all ranks from one time of the job up to another."""
    for rank in range(4):
        timed = _records(rank)
        write(directory, rank, *(each for at_ns, each in timed if since_ns <= at_ns < until_ns))


def _told(watch: Watch) -> list[tuple[Kind, str, int, int | None]]:
    return [
        (
            each.cause.kind,
            each.cause.name,
            each.named_ns - START_NS,
            None if each.until_ns is None else each.until_ns - START_NS,
        )
        for each in watch.spells
    ]


NIC = (Kind.NIC, "NIC 0 of host node2", 11 * S + _QUARTER_NS, 15 * S)


def test_records_of_the_past_name_the_same_cause_as_records_of_the_present(tmp_path: Path) -> None:
    past, present = tmp_path / "past", tmp_path / "present"
    for each in (past, present):
        each.mkdir()
    _write(past, 0, 30 * S)
    after = Watch.recorded(past, START_NS + 1000 * S)
    live = Watch(Job(present))
    for quarter in range(4 * 30):
        _write(present, quarter * _QUARTER_NS, (quarter + 1) * _QUARTER_NS)
        live.update(START_NS + (quarter + 1) * _QUARTER_NS)
        if quarter == 4 * 12:
            assert _told(live) == [(*NIC[:3], None)]
    assert _told(after) == _told(live) == [NIC]
    links = {(a, b, 0) for a, b in permutations(range(4), 2) if 2 in (a, b)}
    assert after.spells[0].links == links


def test_a_cause_explains_the_findings_of_its_links_and_of_its_time(tmp_path: Path) -> None:
    _write(tmp_path, 0, 30 * S)
    watch = Watch.recorded(tmp_path, START_NS + 1000 * S)
    (cause,) = watch.spells
    findings = {finding.sentence: finding for finding in watch.job.findings}
    assert len(findings) == 6  # a broken rail is told once for both directions
    assert all(cause.explains(each) for each in findings.values())
    silent = findings["link 0>2 is silent"]
    times = [silent.time_ns - 2 * S, silent.time_ns + 10 * S]
    for other in (
        *(type(silent)(time_ns, silent.sentence, silent.link) for time_ns in times),
        type(silent)(silent.time_ns, "link 0>1 is silent", (0, 1, 0)),
        type(silent)(silent.time_ns, "rank 1 answers late", rank=1),
    ):
        assert not cause.explains(other), other
    assert cause.explains(type(silent)(silent.time_ns, "rank 2 answers late", rank=2))


@pytest.mark.timeout(20)
def test_a_silence_of_a_year_between_two_records_costs_no_time(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0))
    write(tmp_path, 1, replace(header(1), time_ns=START_NS + 365 * 86_400 * S))
    watch = Watch.recorded(tmp_path, 2**62)
    assert (len(watch.job.ranks), watch.spells) == (2, [])


def test_a_directory_without_records_cannot_be_watched(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no telemetry: no file rank-"):
        Watch.recorded(tmp_path, START_NS)

"""Tests of the evidence in a directory: missing, cut and outdated files, and exit codes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from ended_ranks import an_event, of_rank
from made_records import START_NS, header, write

from slackline.causes.ending import explain, gather
from slackline.errors import UsageError
from slackline.records import (
    Counters,
    GroupOpened,
    Record,
)
from slackline.records.failures import report_file_of, write_report


def _write(directory: Path, rank: int, *records: Record, process: int | None = None) -> None:
    begin = header(rank, clock="", process=rank if process is None else process)
    write(directory, rank, begin, *records)


def _end(rank: int) -> Counters:
    return Counters(rank=rank, time_ns=START_NS + 9, values={})


def test_the_facts_of_all_files_are_joined_by_rank(tmp_path: Path) -> None:
    opened = GroupOpened(rank=0, time_ns=START_NS, size=3, epoch=1, members=(0, 1, 2))
    _write(tmp_path, 0, opened, _end(0))
    _write(tmp_path, 1)
    report = of_rank(1, an_event("asked")).report
    assert report is not None
    write_report(tmp_path, report)
    (tmp_path / "result.json").write_text(json.dumps([{"rank": 1, "exitcode": -9}]))
    evidence = gather(tmp_path)
    assert evidence.problems == ()
    assert [
        (each.rank, each.host, each.ended, each.exit_code, each.seen_ns - START_NS, each.report)
        for each in evidence.ranks.values()
    ] == [
        (0, "host0", True, None, 9, None),
        (1, "host1", False, -9, 0, report),
        (2, "", False, None, -START_NS, None),
    ]
    assert explain(evidence).cause == "Rank 1 is gone: its process was killed by SIGKILL."


def test_a_report_of_a_process_before_a_restart_is_left_out(tmp_path: Path) -> None:
    _write(tmp_path, 1)
    _write(tmp_path, 1, _end(1), process=500)
    report = of_rank(1, an_event("failure")).report
    assert report is not None
    write_report(tmp_path, report)
    evidence = gather(tmp_path)
    assert evidence.problems == (
        "the report of rank 1 is left out: it is of process 1, and the rank's latest process is "
        "500",
    )
    assert evidence.ranks[1].report is None
    write_report(tmp_path, replace(report, process=500))
    assert gather(tmp_path).ranks[1].report is not None


def test_files_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    report_file_of(tmp_path, 0).write_text('{"version": 2}')
    report_file_of(tmp_path, 1).write_text('{"version": 1, "ra')
    (tmp_path / "result.json").write_text("[{}]")
    assert explain(gather(tmp_path)).sentences == (
        "No file of a rank can be read.",
        "The end of the job is therefore unknown.",
        "Look at the notes about these files.",
    )
    assert gather(tmp_path).problems == (
        f"{tmp_path}/rank-00000.report.json: the report has version 2 of the schema, and this "
        "slackline reads version 1",
        f"{tmp_path}/rank-00001.report.json: the report is not JSON, Unterminated string starting "
        'at: line 1 column 16 (char 15): \'{"version": 1, "ra\'',
        f"{tmp_path}/result.json: the exit codes of the ranks cannot be read: 'rank'",
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", "{!r} has no report and no telemetry of any rank"),
        ("none", "there is no directory {!r}"),
    ],
)
def test_a_directory_without_a_file_of_a_rank_is_refused(
    name: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        gather(tmp_path / name)
    assert str(caught.value) == message.format(str(tmp_path / name))

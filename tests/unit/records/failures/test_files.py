"""Tests of the files of reports: JSON, versions, cut files, limits, and stacks at a signal."""

import faulthandler
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from slackline.errors import UsageError
from slackline.history import parse_report, read_dumps, read_reports
from slackline.records.failures import (
    Error,
    Event,
    Frame,
    MissingPart,
    OperationState,
    RailState,
    Report,
    Thread,
    dump_file_of,
    encode,
    report_file_of,
    write_report,
)
from slackline.records.failures._dump import dump_header, parse_dump

_FRAME = Frame(file="train.py", line=12, function="step")
_OPERATION = OperationState(
    kind="all_reduce",
    bytes=4000,
    group=1,
    members=(0, 1, 2),
    tag=-1,
    sequence=7,
    internal=0,
    peer=-1,
    plan="ring",
    posted_ns=5,
    usual_ns=3,
    missing=(MissingPart(rank=1, state="silent"),),
    waits_for="rank 1 (which has not posted it)",
)
_RAIL = RailState(
    peer=1,
    rail=0,
    kind="tcp",
    name="tcp 127.0.0.1",
    state="up",
    sent_bytes=10,
    received_bytes=20,
    unconfirmed_bytes=0,
    sent_ns=1,
    received_ns=2,
    outward="",
    inward="",
)
_EVENT = Event(
    kind="hang",
    time_ns=100,
    monotonic_ns=50,
    errors=(Error(type="ValueError", message="wrong", frames=(_FRAME,)),),
    waiting=(_OPERATION,),
    rails=(_RAIL,),
    threads=(Thread(name="MainThread", main=True, frames=(_FRAME,)),),
)
_REPORT = Report(
    version=1,
    rank=2,
    host="a",
    clock="boot",
    process=123,
    script="train.py",
    versions={"python": "3.12"},
    events=(_EVENT,),
)


def test_a_report_comes_back_from_its_file(tmp_path: Path) -> None:
    assert write_report(tmp_path, _REPORT) == _REPORT
    assert read_reports(tmp_path) == ({2: _REPORT}, [])
    assert [path.name for path in tmp_path.iterdir()] == ["rank-00002.report.json"]


def test_a_reader_skips_fields_that_it_does_not_know() -> None:
    given = json.loads(encode(_REPORT))
    given["colour"] = given["events"][0]["sound"] = "new"
    assert parse_report(json.dumps(given)) == _REPORT


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "{",
            "the report is not JSON, Expecting property name enclosed in double quotes: "
            "line 1 column 2 (char 1): '{'",
        ),
        ("[]", "the report: it must be an object, not []"),
        (
            '{"version":9}',
            "the report has version 9 of the schema, and this slackline reads version 1",
        ),
        ('{"version":1}', 'the report: it lacks the key "rank"'),
        (
            encode(_REPORT).replace('"rank":2', '"rank":"2"'),
            "the report: rank must be an integer, not '2'",
        ),
        (
            encode(_REPORT).replace('"events":[', '"events":[7,'),
            "the report: events[0] must be an object, not 7",
        ),
    ],
)
def test_a_report_that_cannot_be_read_is_told_with_its_path(
    text: str, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        parse_report(text)
    assert str(caught.value) == problem
    path = report_file_of(tmp_path, 2)
    path.write_text(text)
    assert read_reports(tmp_path) == ({}, [f"{path}: {problem}"])


def test_a_report_that_is_too_long_loses_events_from_its_middle(tmp_path: Path) -> None:
    events = tuple(replace(_EVENT, time_ns=number) for number in range(5))
    long = replace(_REPORT, events=events)
    written = write_report(tmp_path, long, most_bytes=len(encode(long)) - 1)
    assert [event.time_ns for event in written.events] == [0, 1, 3, 4]
    assert written.left_out == 1
    shortest = write_report(tmp_path, long, most_bytes=1)
    assert (len(shortest.events), shortest.left_out) == (1, 4)
    assert read_reports(tmp_path)[0] == {2: shortest}


def test_a_directory_that_cannot_be_written_raises_and_leaves_no_part(tmp_path: Path) -> None:
    report_file_of(tmp_path, 2).mkdir()
    with pytest.raises(IsADirectoryError):
        write_report(tmp_path, _REPORT)
    assert [path.name for path in tmp_path.iterdir()] == ["rank-00002.report.json"]


def test_the_stacks_of_faulthandler_are_read_with_the_main_thread_first(tmp_path: Path) -> None:
    path = dump_file_of(tmp_path, 3)
    main = threading.main_thread().ident
    assert main is not None
    there, leave = threading.Event(), threading.Event()

    def helper() -> None:
        there.set()
        leave.wait()

    thread = threading.Thread(target=helper)
    thread.start()
    there.wait()
    with path.open("w") as file:
        file.write(dump_header(3, 77, main, 123))
        file.flush()
        faulthandler.dump_traceback(file)
        faulthandler.dump_traceback(file)  # a second signal repeats all threads
    leave.set()
    thread.join()
    dumps, problems = read_dumps(tmp_path)
    assert problems == []
    dump = dumps[3]
    assert (dump.rank, dump.process, dump.opened_ns, dump.fatal) == (3, 77, 123, "")
    assert dump.terminated
    assert [each.main for each in dump.threads].count(True) == 1
    first, *others = dump.threads
    assert (first.name, first.main) == ("MainThread", True)
    assert first.frames[0].file == __file__
    assert first.frames[0].function.startswith("test_the_stacks_of_faulthandler")
    assert "helper" in {frame.function for each in others for frame in each.frames}


def test_a_fatal_error_is_no_termination() -> None:
    text = dump_header(0, 1, 16, 2) + (
        "Fatal Python error: Segmentation fault\n\n"
        "Current thread 0x0000000000000010 (most recent call first):\n"
        '  File "a.py", line 3 in f\n  File "a.py", line 9 in <module>\n\n'
        "Extension modules: numpy (total: 1)\n"
    )
    dump = parse_dump(text)
    assert (dump.fatal, dump.terminated) == ("Segmentation fault", False)
    assert dump.threads[0].frames == (
        Frame(file="a.py", line=3, function="f"),
        Frame(file="a.py", line=9, function="<module>"),
    )


def test_a_file_without_its_first_line_is_told(tmp_path: Path) -> None:
    path = dump_file_of(tmp_path, 1)
    path.write_text("Thread 0x10")
    assert read_dumps(tmp_path) == (
        {},
        [f"{path}: the file of stacks is cut or damaged: its first line is missing"],
    )

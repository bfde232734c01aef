"""Tests of the reporter: hangs, failures, exceptions, requests of other ranks, and its limits."""

import logging
import os
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from slackline.history import read_reports
from slackline.records.failures import (
    MissingPart,
    OperationState,
    RailState,
    Report,
    Reporter,
    report_file_of,
)
from slackline.records.failures._files import request_file_of
from slackline.records.failures._stacks import errors_of

_SECOND_NS = 1_000_000_000


def _operation(sequence: int = 0, *, usual_ns: int = 0, error: str = "") -> OperationState:
    return OperationState(
        kind="all_reduce",
        bytes=400,
        group=1,
        members=(0, 1, 2),
        tag=-1,
        sequence=sequence,
        internal=0,
        peer=-1,
        plan="direct",
        posted_ns=0,
        usual_ns=usual_ns,
        missing=(MissingPart(rank=2, state="silent"),),
        waits_for="rank 2 (which has not posted it)",
        error=error,
    )


def _rail(peer: int) -> RailState:
    return RailState(
        peer=peer,
        rail=0,
        kind="tcp",
        name="tcp",
        state="up",
        sent_bytes=0,
        received_bytes=0,
        unconfirmed_bytes=0,
        sent_ns=0,
        received_ns=0,
        outward="",
        inward="",
    )


class Engine:
    """An engine whose state and clock the test sets."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.pending: list[OperationState] = []
        self.failed: list[OperationState] = []
        self.frames = {1: (0, 0), 2: (0, 0)}

    def failures(self) -> tuple[list[OperationState], int]:
        found, self.failed = self.failed, []
        return found, 3 if found else 0

    def waiting(self) -> list[OperationState]:
        return list(self.pending)

    def rails(self) -> list[tuple[RailState, int, int]]:
        return [(_rail(peer), *counts) for peer, counts in self.frames.items()]


def _reporter(directory: Path, engine: Engine, rank: int = 0, hang_s: int = 30) -> Reporter:
    reporter = Reporter(
        directory,
        rank,
        hang=timedelta(seconds=hang_s),
        now_ns=lambda: engine.now_ns,
        starts=False,
    )
    reporter.follow(engine)
    return reporter


def _report(directory: Path, rank: int = 0) -> Report:
    reports, problems = read_reports(directory)
    assert problems == []
    return reports[rank]


def test_nothing_is_written_while_nothing_happens(tmp_path: Path) -> None:
    engine = Engine()
    reporter = _reporter(tmp_path, engine)
    engine.pending = [_operation()]
    engine.now_ns = 30 * _SECOND_NS
    reporter.look()
    reporter.forget()
    assert list(tmp_path.iterdir()) == []


def test_an_operation_that_hangs_is_reported_once_with_its_state(tmp_path: Path) -> None:
    engine = Engine()
    reporter = _reporter(tmp_path, engine)
    engine.pending = [_operation()]
    for seconds, sent in ((2, 5), (31, 7), (32, 7)):
        engine.now_ns = seconds * _SECOND_NS
        engine.frames[2] = (sent, 0)
        reporter.look()
    (event,) = _report(tmp_path).events
    assert (event.kind, event.monotonic_ns) == ("hang", 31 * _SECOND_NS)
    assert event.waiting == (_operation(),)
    # Rank 2, whose part is missing, comes first; its frames were last seen to leave at the event.
    assert [(rail.peer, rail.sent_ns, rail.received_ns) for rail in event.rails] == [
        (2, 31 * _SECOND_NS, 0),
        (1, 0, 0),
    ]
    assert event.threads[0].main
    assert event.threads[0].frames[0].file.endswith("_stacks.py")
    engine.pending = [_operation(), _operation(1)]
    reporter.look()
    assert [len(event.waiting) for event in _report(tmp_path).events] == [1, 2]


def test_an_operation_hangs_after_twenty_times_its_usual_duration(tmp_path: Path) -> None:
    engine = Engine()
    reporter = _reporter(tmp_path, engine)
    engine.pending = [_operation(usual_ns=2 * _SECOND_NS)]
    engine.now_ns = 40 * _SECOND_NS
    reporter.look()
    assert not report_file_of(tmp_path, 0).exists()
    engine.now_ns += 1
    reporter.look()
    assert report_file_of(tmp_path, 0).exists()


def test_a_limit_of_zero_reports_no_hangs(tmp_path: Path) -> None:
    engine = Engine()
    reporter = _reporter(tmp_path, engine, hang_s=0)
    engine.pending = [_operation()]
    engine.now_ns = 10**6 * _SECOND_NS
    reporter.look()
    assert list(tmp_path.iterdir()) == []


def test_failed_operations_are_reported_also_at_the_end(tmp_path: Path) -> None:
    engine = Engine()
    reporter = _reporter(tmp_path, engine)
    engine.failed = [_operation(error="PeerError")]
    reporter.look()
    engine.failed = [_operation(1, error="PeerError")]
    reporter.forget()
    engine.failed = [_operation(2, error="PeerError")]
    reporter.look()  # after its end the engine is not asked any more
    first, last = _report(tmp_path).events
    assert (first.kind, last.kind) == ("failure", "failure")
    assert [each.sequence for each in (*first.failed, *last.failed)] == [0, 1]
    assert first.failed_left_out == 3


def test_an_exception_is_reported_with_its_cause_without_an_engine(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, 4)
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error
    except ValueError as error:
        reporter.exception(errors_of(error))
    report = _report(tmp_path, 4)
    assert (report.process, report.version) == (os.getpid(), 1)
    assert sorted(report.versions) >= ["python", "slackline"]
    (event,) = report.events
    assert event.kind == "exception"
    assert [(each.type, each.message) for each in event.errors] == [
        ("ValueError", "second"),
        ("KeyError", "'first'"),
    ]
    (frame,) = event.errors[0].frames
    assert frame.file == __file__
    assert frame.function == "test_an_exception_is_reported_with_its_cause_without_an_engine"


def test_the_thread_of_a_reporter_writes_exceptions_and_ends(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, 0)
    reporter.follow(Engine())
    reporter.exception(errors_of(ValueError("wrong")))
    assert [event.kind for event in _report(tmp_path).events] == ["exception"]
    reporter.forget()
    assert "slackline-report" not in {each.name for each in threading.enumerate()}


def test_another_rank_s_report_asks_for_a_report_of_this_rank(tmp_path: Path) -> None:
    one, other = Engine(), Engine()
    asking, asked = _reporter(tmp_path, one), _reporter(tmp_path, other, rank=1)
    asked.look()
    assert list(tmp_path.iterdir()) == []
    one.failed = [_operation(error="TimeoutError")]
    asking.look()
    asked.look()
    asked.look()
    asking.look()
    assert [event.kind for event in _report(tmp_path, 0).events] == ["failure"]
    assert [event.kind for event in _report(tmp_path, 1).events] == ["asked"]
    # A rank that has just reported does not repeat its state.
    one.failed = [_operation(1, error="TimeoutError")]
    asking.look()
    other.now_ns = 9 * _SECOND_NS
    asked.look()
    assert len(_report(tmp_path, 1).events) == 1


def test_a_request_of_an_earlier_run_is_not_answered(tmp_path: Path) -> None:
    request_file_of(tmp_path).touch()
    reporter = _reporter(tmp_path, Engine())
    reporter.look()
    assert not report_file_of(tmp_path, 0).exists()


def test_the_first_and_the_latest_events_are_kept(tmp_path: Path) -> None:
    engine = Engine()
    reporter = _reporter(tmp_path, engine)
    for number in range(12):
        engine.failed = [_operation(number, error="TimeoutError")]
        reporter.look()
    report = _report(tmp_path)
    assert [event.failed[0].sequence for event in report.events] == [0, 1, 2, 3, 8, 9, 10, 11]
    assert report.left_out == 4


def test_a_directory_that_cannot_be_written_gives_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    engine = Engine()
    reporter = _reporter(tmp_path / "file", engine)
    with caplog.at_level(logging.WARNING, "slackline.records.failures"):
        for number in range(2):
            engine.failed = [_operation(number, error="TimeoutError")]
            reporter.look()
        reporter.exception(errors_of(ValueError("wrong")))
    assert len(caplog.records) == 1
    assert "the report of rank 0 is not written" in caplog.text


def test_an_error_of_the_report_itself_is_logged_and_reaches_no_caller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Engine):
        def waiting(self) -> list[OperationState]:
            raise RuntimeError("no state")

    reporter = _reporter(tmp_path, Broken())
    with caplog.at_level(logging.WARNING, "slackline.records.failures"):
        reporter.forget()
    assert caplog.text.count("the report of rank 0 failed") == 1
    assert "no state" in caplog.text


def test_a_long_report_stays_within_its_limits(tmp_path: Path) -> None:
    engine = Engine()
    reporter = _reporter(tmp_path, engine)
    engine.frames = dict.fromkeys(range(500), (0, 0))
    engine.pending = [replace(_operation(each), waits_for="x" * 5000) for each in range(500)]
    for number in range(9):
        engine.failed = [_operation(number, error="TimeoutError")]
        reporter.look()
    assert report_file_of(tmp_path, 0).stat().st_size <= 1 << 20
    assert len(_report(tmp_path).events[-1].waiting) == 32


def test_each_other_problem_of_the_reports_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Engine):
        def waiting(self) -> list[OperationState]:
            raise RuntimeError(f"no state in {self.now_ns}")

    engine = Broken()
    reporter = _reporter(tmp_path, engine)
    with caplog.at_level(logging.WARNING, "slackline.records.failures"):
        for now_ns in (*range(3), *range(20)):
            engine.now_ns = now_ns
            reporter.forget()
            reporter.follow(engine)
    told = [str(record.exc_info and record.exc_info[1]) for record in caplog.records]
    assert told == [f"no state in {number}" for number in range(8)]

"""Tests of the records of plain steps: a log of operations and a thread's times are given."""

import io
from pathlib import Path

import pytest

from slackline.history import read_file
from slackline.nic import _records
from slackline.records import CoreTimes, RecordLog, StepSummary, file_of

MS = 1_000_000


class Log:
    """Sums over operations that a test sets: waits, durations, reduced bytes."""

    def __init__(self) -> None:
        self.sums = (0, 0, 0)

    def log_operations(self, capacity: int) -> None:
        pass

    def logged_sums(self) -> tuple[int, int, int]:
        return self.sums

    def logged_operations(self) -> tuple[bytes, int, int]:
        return b"", 0, 0


class Clock:
    """The clocks of a thread, which a test sets."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.on_core = CoreTimes(0, 0)

    def monotonic_ns(self) -> int:
        return self.now_ns

    def time_ns(self) -> int:
        return 10**18 + self.now_ns

    def thread_time_ns(self) -> int:
        return self.on_core.run_ns


@pytest.mark.parametrize(
    ("waited", "running", "run", "delay", "exposed"),
    [
        (30, 40, 50, 10, 40),  # It stood for 40 ms, in which operations may have run.
        (30, 20, 50, 10, 30),  # The engine saw waits of 30 ms.
        (0, 90, 50, 10, 40),
        (0, 25, 50, 10, 25),  # It stood longer than operations ran: it waited for something else.
        (0, 0, 50, 10, 0),
        (250, 300, 90, 0, 100),  # Two threads wait; a step has 100 ms.
        (7, 90, None, None, 7),  # The thread's times are not known.
    ],
)
def test_exposed_time_is_that_of_waits_or_of_a_thread_that_stands_while_operations_run(
    waited: int,
    running: int,
    run: int | None,
    delay: int | None,
    exposed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, log = Clock(), Log()
    monkeypatch.setattr(_records, "time", clock)
    reader = None if run is None else (lambda: clock.on_core)
    monkeypatch.setattr(_records, "open_core_times", lambda: reader)
    records = _records.Records(tmp_path)
    records.follow(log)
    records.opened(3, 4)
    clock.now_ns = 20 * MS
    records.stepped(0)
    clock.now_ns += 100 * MS
    log.sums = (waited * MS, running * MS, 4096)
    if run is not None and delay is not None:
        clock.on_core = CoreTimes(run * MS, delay * MS)
    records.stepped(0)
    clock.now_ns += 5 * MS
    records.stepped(1)
    records.close({})
    steps = [each for each in read_file(file_of(tmp_path, 3)) if isinstance(each, StepSummary)]
    first, second, other = steps
    assert (first.wall_ns, first.exposed_ns, first.step) == (20 * MS, 0, 0)
    assert (second.rank, second.step, second.optimizer) == (3, 1, 0)
    assert (second.wall_ns, second.exposed_ns) == (100 * MS, exposed * MS)
    assert second.reduced_bytes == 4096
    assert (second.run_ns, second.run_delay_ns) == (
        None if run is None else run * MS,
        None if delay is None else delay * MS,
    )
    assert (other.optimizer, other.wall_ns, other.run_ns) == (1, 5 * MS, None)
    assert all(each.plain for each in steps)


def test_the_first_step_counts_waits_alone_since_its_thread_began_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, log = Clock(), Log()
    monkeypatch.setattr(_records, "time", clock)
    monkeypatch.setattr(_records, "open_core_times", lambda: lambda: clock.on_core)
    records = _records.Records(tmp_path)
    records.follow(log)
    records.opened(0, 2)
    clock.now_ns = 100 * MS
    log.sums = (7 * MS, 90 * MS, 0)
    records.stepped(0)
    records.close({})
    (first,) = [each for each in read_file(file_of(tmp_path, 0)) if isinstance(each, StepSummary)]
    assert (first.exposed_ns, first.run_ns, first.run_delay_ns) == (7 * MS, None, None)


def test_a_log_shows_steps_without_a_file() -> None:
    stream, log = io.StringIO(), Log()
    records = _records.Records(None, log=RecordLog({"step": "debug"}, stream))
    records.follow(log)
    records.opened(0, 2)
    records.stepped(0)
    log.sums = (7 * MS, 7 * MS, 0)
    records.stepped(0)
    records.close({})
    lines = stream.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "slackline rank 0 step",
        "slackline rank 0 step",
    ]
    assert lines[1].startswith("slackline rank 0 step: step 1 of optimizer 0: ")


def test_steps_before_the_first_group_and_after_the_end_are_left_out(tmp_path: Path) -> None:
    records = _records.Records(tmp_path)
    records.follow(Log())
    records.stepped(0)
    records.opened(0, 1)
    records.close({})
    records.stepped(0)
    found = list(read_file(file_of(tmp_path, 0)))
    assert not [each for each in found if isinstance(each, StepSummary)]

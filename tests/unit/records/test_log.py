"""Tests of records as lines of a log: levels, subsystems, and one line for each kind."""

import io
import json
import sys

import pytest
from made_records import link, step, verdict

from slackline.records import (
    ClockOffset,
    Counters,
    Decision,
    GroupOpened,
    OperationsText,
    RailChange,
    RecordLog,
    Setting,
    Written,
)

ROWS = [
    [1, 0, -1, 4_194_304, 1, 7, -1, 3, 0, 3, 1, 1_000_000, 1_100_000, 3_000_000, 500_000, 0],
    [1, 0, -1, 64, 1, 7, -1, 4, 1, 3, 1, 0, 0, 2_000, 0, 0],
    [10, 1, 2, 800, 1, 7, 5, 0, 0, 0, 0, 0, 0, 2_000, 0, 1],
]
TEXT = ",".join(json.dumps(row) for row in ROWS)
CHANGE = RailChange(rank=1, time_ns=1, peer=2, rail=0, change="lost", reason="reset by peer")
LINES: list[tuple[Written, str, str]] = [
    (
        GroupOpened(rank=1, time_ns=1, size=2, epoch=4, members=(1, 3)),
        "info",
        "slackline rank 1 group: group 4 of 2 ranks is open: 1, 3\n",
    ),
    (
        Counters(rank=1, time_ns=1, values={"tcp_frames_sent": 7, "idle": 0}),
        "debug",
        "slackline rank 1 group: the engine has ended: tcp_frames_sent 7\n",
    ),
    (
        Setting(rank=1, time_ns=1, name="plan", value="ring", origin="environment"),
        "debug",
        "slackline rank 1 setting: plan = ring (environment)\n",
    ),
    (
        Decision(rank=1, time_ns=1, subject="plan", choice="mesh", reason="105 us, as tried"),
        "info",
        "slackline rank 1 plan: mesh: 105 us, as tried\n",
    ),
    (
        Decision(rank=1, time_ns=1, subject="shares", choice="1:2", reason="measured"),
        "info",
        "slackline rank 1 plan: shares 1:2: measured\n",
    ),
    (CHANGE, "info", "slackline rank 1 rail: rail 0 to rank 2 is lost: reset by peer\n"),
    (
        RailChange(rank=1, time_ns=1, peer=2, rail=-1, change="down", reason="it has ended"),
        "info",
        "slackline rank 1 rail: the link to rank 2 is down: it has ended\n",
    ),
    (verdict(1, 0, 1, 5, "slow"), "info", "slackline rank 1 link: link 0>1 is slow\n"),
    (step(1, 3), "debug", "slackline rank 1 step: step 3 of optimizer 0: "),
    (link(1, 0, 10**9), "debug", "slackline rank 1 link: tcp rail 0 to rank 0: in "),
    (
        OperationsText(rank=1, lost=2, rows=TEXT),
        "trace",
        "slackline rank 1 operation: all_reduce 3 of group 7: 4 MiB by ring over 0 in 2 ms, "
        "waited 500 us\n"
        "slackline rank 1 operation: recv 0 of group 7 with rank 2: 800 B in 2 us, FAILED\n"
        "slackline rank 1 operation: 2 operations not shown: there were too many\n",
    ),
]


def shown(levels: dict[str, str], record: Written) -> str:
    stream = io.StringIO()
    RecordLog(levels, stream).take(record)
    return stream.getvalue()


@pytest.mark.parametrize(("record", "level", "line"), LINES)
def test_a_record_is_shown_from_its_level_on(record: Written, level: str, line: str) -> None:
    levels = ("info", "debug", "trace")
    for number, each in enumerate(levels):
        told = shown({"": each}, record)
        if number < levels.index(level):
            assert told == ""
        else:
            assert told.startswith(line)
            assert told.endswith("\n")


def test_a_subsystem_has_its_own_level() -> None:
    assert shown({"rail": "info"}, CHANGE)
    assert not shown({"plan": "trace"}, CHANGE)
    assert not shown({"": "debug", "operation": "info"}, OperationsText(rank=0, lost=0, rows=TEXT))


def test_records_without_a_subsystem_are_left_out() -> None:
    assert not shown({"": "trace"}, ClockOffset(rank=0, peer=1, at_ns=1, offset_ns=0, error_ns=1))


def test_a_closed_stream_ends_the_log_and_not_the_training() -> None:
    stream = io.StringIO()
    log = RecordLog({"": "trace"}, stream)
    stream.close()
    log.take(CHANGE)
    log.take(CHANGE)


def test_a_process_without_stderr_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    RecordLog({"": "trace"}).take(CHANGE)

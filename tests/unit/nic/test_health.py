"""Tests of the monitor of a group's links: its conclusions about an engine's rails, and its
reports."""

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from slackline.history import read_file
from slackline.nic import Group, NicOptions
from slackline.nic._health import Monitor, _pause_s, to_sample
from slackline.nic._records import Records
from slackline.records import (
    ClockOffset,
    Counters,
    GroupOpened,
    LinkReport,
    LinkVerdict,
    RailChange,
    file_of,
)
from slackline.testing import run_ranks

MS = 1_000_000
S = 1_000_000_000


@dataclass
class Status:
    """A RailStatus with scripted values."""

    link: int = 7
    rail: int = 0
    kind: str = "tcp"
    name: str = "tcp a>b"
    state: str = "up"
    frames_sent: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    round_trip_ns: int = 0
    packets_sent: int = 0
    packets_resent: int = 0
    queued_bytes: int = 0
    unconfirmed_bytes: int = 0
    confirmed_bytes: int = 0
    busy_ns: int = 0
    probes: list[tuple[int, int, int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class RailEvent:
    """A RailEvent of the engine with given values."""

    link: int
    rail: int
    what: str
    reason: str
    time_ns: int


class Script:
    """An engine with one rail that is probed every 50 ms; a probe takes `there_ns` to the peer."""

    def __init__(self, start_ns: int) -> None:
        self.there_ns = 100_000
        self.alive = True
        self.rail = True
        self.looks = 0
        self.looked = threading.Event()
        self.status = Status()
        self._next_ns = start_ns

    def until(self, now_ns: int) -> None:
        while self._next_ns + 100 * MS < now_ns:
            sent = self._next_ns
            received = sent + self.there_ns
            self.status.probes.append((sent, received, received, received + 100_000))
            self._next_ns += 50 * MS
            self.status.frames_sent += 1
        del self.status.probes[:-32]

    def rails(self) -> list[Status]:
        self.looks += 1
        self.looked.set()
        state = "up" if self.alive else "ended"
        wires = [replace(self.status, state=state)] if self.rail else []
        return [*wires, Status(kind="shm", link=8, state=state)]

    def link_alive(self, link: int) -> bool:
        assert link in (7, 8)
        return self.alive


def _looks(monitor: Monitor, script: Script, begin_ns: int, end_ns: int) -> Iterator[bool]:
    for now_ns in range(begin_ns, end_ns, 250 * MS):
        script.until(now_ns)
        yield monitor.look(now_ns)


def test_news_goes_to_the_log_and_to_telemetry(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "slackline.detect")
    start_ns = time.monotonic_ns()
    script = Script(start_ns)
    records = Records(tmp_path)
    records.opened(5, 3)
    monitor = Monitor(script, [-1, 7, 8], 0, members=(5, 3, 9), write=records.write)
    assert all(_looks(monitor, script, start_ns + 250 * MS, start_ns + 10 * S))
    assert [str(judgement.decision) for judgement in monitor.judgements()] == ["well", "well"]
    script.there_ns += 30 * MS
    assert all(_looks(monitor, script, start_ns + 10 * S, start_ns + 12 * S))
    script.there_ns -= 30 * MS
    assert all(_looks(monitor, script, start_ns + 12 * S, start_ns + 14 * S))
    monitor.stop()
    records.close({"frames": 7})

    said = [(record.levelname, record.message) for record in caplog.records]
    assert [level for level, _ in said] == ["WARNING", "INFO"]
    assert said[0][1].startswith("link 5>3 is slow since 9.")
    assert said[0][1].endswith(
        " s: 30 ms over its usual 100 us; nothing more than usual waits at the sender"
    )
    assert said[1][1].startswith("link 5>3 is back at 12.")
    written = list(read_file(file_of(tmp_path, 5)))
    opened, slow, back, counters = (
        record for record in written if not isinstance(record, LinkReport | ClockOffset)
    )
    assert isinstance(opened, GroupOpened)
    assert (opened.rank, opened.size) == (5, 3)
    assert isinstance(counters, Counters)
    assert (counters.rank, counters.values) == (5, {"frames": 7})
    assert isinstance(slow, LinkVerdict)
    assert isinstance(back, LinkVerdict)
    assert (slow.rank, slow.condition, slow.source, slow.target) == (5, "slow", 5, 3)
    assert abs(slow.over_ns - 30 * MS) < MS
    assert slow.reason == said[0][1]
    assert back.condition == "back"
    reports = [record for record in written if isinstance(record, LinkReport)]
    assert [report.at_ns - start_ns for report in reports[:3]] == [
        S + 250 * MS,
        2250 * MS,
        3250 * MS,
    ]
    assert {(report.rank, report.peer, report.interval_ns) for report in reports[1:]} == {(5, 3, S)}
    assert reports[4].outward == "link 5>3 is well: 100 us one way as usual"
    assert any(report.outward.startswith("link 5>3 is slow") for report in reports)
    offsets = [record for record in written if isinstance(record, ClockOffset)]
    assert {(offset.rank, offset.peer) for offset in offsets} == {(5, 3)}
    assert (offsets[0].offset_ns, offsets[0].error_ns) == (0, 100_000)


def test_a_lost_rail_is_told_at_the_first_look_with_the_reason_of_the_engine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    start_ns = time.monotonic_ns()
    script = Script(start_ns)
    monitor = Monitor(script, [-1, 7], 0, start_ns=start_ns)
    list(_looks(monitor, script, start_ns + 250 * MS, start_ns + 5 * S))
    script.rail = False
    monitor.rail_changed(7, 0, "lost", "tcp a>b silent for 1.0 s")
    monitor.look(start_ns + 5 * S)
    assert [record.message for record in caplog.records] == [
        "link 0-1 is cut since 5.0 s: tcp a>b silent for 1.0 s"
    ]
    script.rail = True
    monitor.rail_changed(7, 0, "up", "tcp a>b is connected")
    script.until(start_ns + 6 * S)
    monitor.look(start_ns + 6 * S)
    assert [str(judgement.decision) for judgement in monitor.judgements()] == ["well", "well"]


def test_a_change_of_a_rail_wakes_the_monitor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackline.nic._health._IDLE_S", 3600.0)
    script = Script(time.monotonic_ns())
    monitor = Monitor(script, [-1, 7], 0)
    monitor.start()
    try:
        while script.looks < 2:  # The first call is that of `start`.
            assert script.looked.wait(30)
            script.looked.clear()
        monitor.rail_changed(7, 0, "up", "tcp a>b answers again")
        assert script.looked.wait(30)
        assert script.looks == 3
    finally:
        monitor.stop()


def test_nothing_moves_without_traffic() -> None:
    start_ns = time.monotonic_ns()
    script = Script(start_ns)
    monitor = Monitor(script, [-1, 7], 0)
    assert list(_looks(monitor, script, start_ns + 250 * MS, start_ns + S))[-1]
    assert not monitor.look(start_ns + S)


def test_a_link_whose_peer_has_left_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    start_ns = time.monotonic_ns()
    script = Script(start_ns)
    monitor = Monitor(script, [-1, 7], 0)
    assert all(_looks(monitor, script, start_ns + 250 * MS, start_ns + 5 * S))
    script.alive = False
    for second in (6, 7, 8):
        monitor.look(start_ns + second * S)
    assert caplog.records == []
    assert monitor.judgements() == []


def _ways(group: Group) -> list[str]:
    """Return the names of the directions that a group reports while both ranks are present. The
    state of a direction is left out, because it depends on timing."""
    native = cast(Any, group)
    monitor: Monitor | None = native._health.__self__._monitor
    group.barrier(blocking=True)
    if monitor is not None:  # Ranks that share memory have none.
        monitor.look(time.monotonic_ns())
    reasons = [judgement.reason for judgement in native.health()]
    group.barrier(blocking=True)
    return [" ".join(reason.split()[:2]) for reason in reasons]


@pytest.mark.parametrize(
    ("rails", "ways"),
    [
        (("tcp",), ["link 0>1", "link 1>0"]),
        (("shm",), []),
    ],
)
def test_wires_of_a_real_group_are_watched_and_shared_memory_is_not(
    rails: tuple[str, ...], ways: list[str]
) -> None:
    options = NicOptions(rails=rails, arena_bytes=64 << 20)
    assert run_ranks(2, _ways, options=options)[0] == ways


def test_a_request_reports_every_rail_since_the_request_before() -> None:
    script = Script(time.monotonic_ns())
    monitor = Monitor(script, [-1, 7, 8], 0)
    script.status.bytes_sent = 3000
    first, shared = monitor.reports()
    assert (first.rank, first.peer, first.kind, first.sent_bytes) == (0, 1, "tcp", 3000)
    assert (shared.peer, shared.kind, shared.sent_bytes) == (2, "shm", 0)
    script.status.bytes_sent = 3500
    script.alive = False
    again, _ = monitor.reports()
    assert (again.sent_bytes, again.state) == (500, "ended")
    assert again.interval_ns == again.at_ns - first.at_ns


@pytest.mark.parametrize(
    ("busy", "spent_s", "pause_s"),
    [(True, 0.0005, 0.25), (True, 0.003, 0.6), (True, 0.2, 1.0), (False, 0.0005, 1.0)],
)
def test_samples_that_take_long_are_taken_seldom(
    busy: bool, spent_s: float, pause_s: float
) -> None:
    assert _pause_s(busy, spent_s) == pytest.approx(pause_s)


def test_nothing_is_recorded_after_the_end(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.opened(0, 1)
    records.close({})
    (file,) = tmp_path.iterdir()
    written = file.read_bytes()
    records.opened(0, 1)
    records.decided("plan", "ring", "it was asked for")
    records.close({})
    assert file.read_bytes() == written


@pytest.mark.parametrize(("kind", "counts"), [("tcp", (0, 0)), ("udp", (1000, 20))])
def test_verdicts_about_loss_are_those_of_udp_rails(kind: str, counts: tuple[int, int]) -> None:
    """TCP repeats packets whenever it fills a queue; its counters are in the reports alone."""
    status = Status(kind=kind, packets_sent=1000, packets_resent=20)
    sample = to_sample(status, 0, 1, 0)
    assert (sample.packets_sent, sample.packets_resent) == counts


def test_a_change_of_a_rail_is_written_with_the_ranks_of_the_job(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.opened(5, 2, members=(5, 3), links=(-1, 7))
    told = RailEvent(link=7, rail=1, what="lost", reason="eth1 reset", time_ns=time.monotonic_ns())
    before_ns = time.time_ns()
    records.rail_changed(told)
    records.rail_changed(replace(told, rail=-1, what="down", reason="its process has ended"))
    records.rail_changed(replace(told, link=9, what="wanted"))
    records.close({})
    lost, down = (each for each in read_file(file_of(tmp_path, 5)) if isinstance(each, RailChange))
    assert (lost.rank, lost.peer, lost.rail) == (5, 3, 1)
    assert (lost.change, lost.reason) == ("lost", "eth1 reset")
    assert abs(lost.time_ns - before_ns) < 10 * S
    assert (down.peer, down.rail, down.change) == (3, -1, "down")

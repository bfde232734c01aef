"""Tests of the telemetry of real engines: operations, decisions, groups and the links' clocks."""

import ctypes
import time
from pathlib import Path

import pytest

from slackline import nic
from slackline.errors import PeerError
from slackline.history import read_file, read_reports
from slackline.nic import Group, NicOptions
from slackline.plan.collective import even_runs
from slackline.records import (
    ClockOffset,
    Counters,
    Decision,
    GroupOpened,
    LinkReport,
    Operation,
    Operations,
    Setting,
    file_of,
)
from slackline.testing import run_ranks
from slackline.wire import DType, ReduceOp

COUNT = 100_000
TAG = 77


def _work(group: Group) -> tuple[int, int]:
    """Sum an array with a tag and send an array to the other rank; return the times before the sum
    and after the message."""
    mine = (ctypes.c_float * COUNT)()
    at = ctypes.addressof(mine)
    begin = time.monotonic_ns()
    group.all_reduce(at, at, COUNT, DType.FLOAT32, ReduceOp.SUM, tag=TAG, blocking=True)
    if group.rank == 0:
        group.send(at, COUNT, DType.FLOAT32, 1, 5, blocking=True)
    else:
        group.recv(at, COUNT, DType.FLOAT32, 0, 5).wait()
    return begin, time.monotonic_ns()


def _own(path: Path) -> list[Operation]:
    """Return the operations of the test itself, without those of the library."""
    batches = [record for record in read_file(path) if isinstance(record, Operations)]
    assert all(batch.lost == 0 for batch in batches)
    every = [operation for batch in batches for operation in batch.rows]
    return [operation for operation in every if operation.bytes == 4 * COUNT]


@pytest.mark.parametrize("rail", ["tcp", "shm"])
def test_each_operation_of_an_engine_is_in_the_file(
    rail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKLINE_TELEMETRY", str(tmp_path))
    options = NicOptions(rails=(rail,), plan="ring", arena_bytes=64 << 20)
    times = run_ranks(2, _work, options=options)
    for rank, (begin, end) in enumerate(times):
        reduced, message = _own(file_of(tmp_path, rank))
        assert (reduced.kind, reduced.plan_name, reduced.tag) == ("all_reduce", "ring", TAG)
        assert (reduced.peer, reduced.sequence, reduced.internal) == (-1, 0, 0)
        assert (message.kind, message.plan_name) == (("send", "recv")[rank], "")
        assert (message.tag, message.peer, message.sequence) == (5, 1 - rank, 0)
        carried = ("0",) if rail == "tcp" else ("shm",)
        assert reduced.rail_names == carried
        assert message.rail_names == (carried if rank == 0 else ())
        for each in (reduced, message):
            assert each.dtype == DType.FLOAT32
            assert not each.failed
            assert begin <= each.posted_ns <= each.started_ns <= each.ended_ns <= end
            assert 0 <= each.waited_ns <= each.ended_ns - each.posted_ns
        assert reduced.waited_ns == reduced.ended_ns - reduced.posted_ns  # The call blocked.


def test_choices_groups_and_counters_are_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKLINE_TELEMETRY", str(tmp_path))
    monkeypatch.setenv("SLACKLINE_RAILS", "tcp")
    options = NicOptions(rails=("tcp",), plan="ring", arena_bytes=64 << 20)
    run_ranks(2, _work, options=options)
    records = list(read_file(file_of(tmp_path, 1)))
    settings = [record for record in records if isinstance(record, Setting)]
    assert [(each.name, each.value, each.origin) for each in settings] == [
        ("order", "auto", "default"),
        ("plan", "ring", "argument"),
        ("shares", "auto", "default"),
        ("aggregator", "", "default"),
        ("rails", "tcp", "environment"),
        ("segment", "128KiB", "default"),
    ]
    (opened,) = (record for record in records if isinstance(record, GroupOpened))
    assert (opened.size, opened.members) == (2, (0, 1))
    operation = _own(file_of(tmp_path, 1))[0]
    assert operation.group == opened.epoch
    made = [record for record in records if isinstance(record, Decision)]
    assert ("plan", "ring for all_reduce of at most 512 KiB", "asked for by name") in [
        (decision.subject, decision.choice, decision.reason) for decision in made
    ]
    (counters,) = (record for record in records if isinstance(record, Counters))
    assert counters.values["operations"] > 0


def _nodes(group: Group) -> None:
    """Add the nodes of a tree; then let rank 1 begin once more, alone."""
    runs = even_runs(8, 3)
    mine = (ctypes.c_float * COUNT)()
    at = ctypes.addressof(mine)
    places = [at] * len(runs.nodes[group.rank])
    how = DType.FLOAT32, ReduceOp.SUM, runs
    sums = nic.Operation.all_reduce_nodes(places, at, COUNT, *how, tag=TAG)
    group.post(sums, blocking=True)
    if group.rank == 1:
        with pytest.raises(PeerError, match=r"rank [02] closed the group"):
            group.post(sums, blocking=True)


def test_sums_of_nodes_have_their_plan_in_the_file_and_in_the_report_of_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKLINE_TELEMETRY", str(tmp_path))
    run_ranks(3, _nodes, options=NicOptions(arena_bytes=64 << 20))
    path = file_of(tmp_path, 1)
    rows = [(each.plan_name, bool(each.failed)) for each in _own(path)]
    assert rows == [("tree", False), ("tree", True)]
    made = [(each.choice, each.reason) for each in read_file(path) if isinstance(each, Decision)]
    choice = "tree for all_reduce of nodes of at most 512 KiB"
    assert made.count((choice, "the only one for nodes of a tree")) == 1
    reports, _ = read_reports(tmp_path)
    operations = [each for event in reports[1].events for each in event.failed]
    assert {(each.kind, each.plan, each.tag) for each in operations} == {
        ("all_reduce", "tree", TAG)
    }


def _until_reported(group: Group, path: Path) -> None:
    """Exchange small arrays, with pauses, until both ranks have reported their links."""
    words = (ctypes.c_float * 1000)()
    at = ctypes.addressof(words)
    more = (ctypes.c_int64 * 1)(1)
    while more[0]:
        group.all_reduce(at, at, 1000, DType.FLOAT32, ReduceOp.SUM, blocking=True)
        written = {type(record) for record in read_file(path)}
        more[0] = not {LinkReport, ClockOffset} <= written
        where = ctypes.addressof(more)
        group.all_reduce(where, where, 1, DType.INT64, ReduceOp.MAX, blocking=True)
        time.sleep(0.02)  # Tens of arrays a second suffice until the engine's next report.


def test_the_links_of_a_real_group_are_reported_with_the_offset_of_the_clocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKLINE_TELEMETRY", str(tmp_path))

    def body(group: Group) -> None:
        _until_reported(group, file_of(tmp_path, group.rank))

    run_ranks(2, body, options=NicOptions(rails=("tcp",), arena_bytes=64 << 20))
    for rank in range(2):
        records = list(read_file(file_of(tmp_path, rank)))
        reports = [record for record in records if isinstance(record, LinkReport)]
        assert reports
        for report in reports:
            assert (report.rank, report.peer, report.rail, report.kind) == (
                rank,
                1 - rank,
                0,
                "tcp",
            )
            assert report.sent_bytes > 0
            assert report.received_bytes > 0
            assert report.outward.startswith(f"link {rank}>{1 - rank} is ")
            assert report.inward.startswith(f"link {1 - rank}>{rank} is ")
        offsets = [record for record in records if isinstance(record, ClockOffset)]
        assert offsets
        # Both ranks have the same clock here, so the error bounds the whole offset.
        assert all(abs(offset.offset_ns) <= offset.error_ns for offset in offsets)

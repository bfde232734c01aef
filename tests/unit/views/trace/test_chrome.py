"""Tests of traces in Chrome's Trace Event Format."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from trace_runs import UNIX, write_everything

from slackline.history import Recording
from slackline.views.trace import Slice, TraceFormat, events_of, write_trace


@pytest.fixture
def run(tmp_path: Path) -> dict[str, Any]:
    write_everything(tmp_path)
    file = io.BytesIO()
    write_trace(Recording(tmp_path, pytest.fail), file, TraceFormat.CHROME)
    loaded = json.loads(file.getvalue())
    assert isinstance(loaded, dict)
    return loaded


def test_the_slices_are_those_of_the_run(run: dict[str, Any], tmp_path: Path) -> None:
    assert run["otherData"] == {"start_unix_ns": str(UNIX)}
    written = [
        (each["pid"], each["name"], each["cat"], each["ts"], each["dur"], each["args"])
        for each in run["traceEvents"]
        if each["ph"] == "X"
    ]
    expected = [
        (
            each.track.rank + 1,
            each.name,
            each.category,
            (each.begin_ns - UNIX) / 1000,
            (each.end_ns - each.begin_ns) / 1000,
            dict(each.arguments),
        )
        for each in events_of(Recording(tmp_path, pytest.fail))
        if isinstance(each, Slice)
    ]
    assert written == expected
    assert len(written) > 20
    assert (1, "all_reduce", 1000.0, 8000.0) in [(*each[:2], *each[3:5]) for each in written]


def test_processes_and_tracks_have_names(run: dict[str, Any]) -> None:
    named = {
        (each["pid"], each.get("tid"), each["name"]): next(iter(each["args"].values()))
        for each in run["traceEvents"]
        if each["ph"] == "M"
    }
    assert named[1, None, "process_name"] == "rank 0 on host0"
    assert named[2, None, "process_labels"] == "host1, pid 101"
    assert named[2, None, "process_sort_index"] == 1
    threads = [name for (pid, _, kind), name in named.items() if (pid, kind) == (1, "thread_name")]
    assert sorted(threads) == [
        "gradients",
        "group 0 (ranks 0-1)",
        "group 0 (ranks 0-1) (2)",
        "messages",
        "pipeline",
        "training",
        "waits, group 0 (ranks 0-1)",
    ]


def test_arrows_pair_and_lie_within_slices(run: dict[str, Any]) -> None:
    events = run["traceEvents"]
    begins = {each["id"]: each for each in events if each["ph"] == "s"}
    ends = {each["id"]: each for each in events if each["ph"] == "f"}
    assert begins.keys() == ends.keys()
    assert len(begins) == sum(each["ph"] == "s" for each in events) == 5
    for flow, begin in begins.items():
        assert begin["ts"] <= ends[flow]["ts"]
        assert ends[flow]["bp"] == "e"
        for arrow in (begin, ends[flow]):
            assert any(
                each["ph"] == "X"
                and (each["pid"], each["tid"]) == (arrow["pid"], arrow["tid"])
                and each["ts"] <= arrow["ts"] <= each["ts"] + each["dur"]
                for each in events
            )


def test_counters_and_instants_have_their_values(run: dict[str, Any]) -> None:
    events = run["traceEvents"]
    counters = {each["name"]: each["args"] for each in events if each["ph"] == "C"}
    assert counters["to rank 1, rail 0: rate out"] == {"bit/s": 200_000_000}
    assert counters["to rank 1, rail 0: queued"] == {"bytes": 77}
    (instant,) = (each for each in events if each["ph"] == "i")
    assert (instant["name"], instant["ts"], instant["s"]) == ("plan: ring", 0.003, "t")
    assert instant["args"] == {"reason": "measured"}

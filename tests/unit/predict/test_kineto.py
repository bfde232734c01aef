"""Tests of traces of torch.profiler: recorded ones, and ones with a flaw.

The traces beside this file were recorded by make_traces.py, with DistributedDataParallel on two
ranks of one machine.
"""

import gzip
import json
import statistics
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from slackline import predict
from slackline.errors import UsageError

TRACES = Path(__file__).with_name("traces")
WIDTH, LAYERS, STEPS = 128, 3, 5
LAYER_BYTES = 4 * (WIDTH * WIDTH + WIDTH)


def traces(backend: str) -> list[dict[str, Any]]:
    """Return the recorded traces without the events of single operators."""
    found: list[dict[str, Any]] = json.loads(short_traces(backend))
    return found


@cache
def short_traces(backend: str) -> str:
    found = []
    for rank in (0, 1):
        packed = (TRACES / backend / f"{rank}.json.gz").read_bytes()
        trace = json.loads(gzip.decompress(packed))
        trace["traceEvents"] = [
            event
            for event in trace["traceEvents"]
            if event["name"].startswith(("ProfilerStep#", "Optimizer.step#", f"{backend}:"))
        ]
        found.append(trace)
    return json.dumps(found)


@pytest.mark.parametrize("backend", ["gloo", "slackline"])
def test_a_recorded_trace_is_read(backend: str) -> None:
    run = predict.load(TRACES / backend)
    assert (run.ranks, run.policy) == (2, "buckets")
    # The first recorded step only tells where the second one begins.
    assert len(run.steps) == STEPS - 1
    assert sum(group.nbytes for group in run.groups) == LAYERS * LAYER_BYTES
    assert len(run.groups) == LAYERS
    for number, step in enumerate(run.steps, start=1):
        wanted = [walls_us(trace, backend)[number] for trace in traces(backend)]
        assert step.wall_ns == pytest.approx(1000 * statistics.mean(wanted), abs=2000)
        for rank in step.ranks:
            assert 0 < rank.total_ns < step.wall_ns + 10**6
    assert predict.predict(run, samples=4).warnings[:2] == run.notes
    assert "is taken for a ring" in run.notes[0]


def walls_us(trace: dict[str, Any], backend: str) -> list[float]:
    """Return the time from each step's last end of an all_reduce to the next step's, in us."""
    events = trace["traceEvents"]
    begins = sorted(
        event["ts"]
        for event in events
        if event.get("ph") == "X" and str(event["name"]).startswith("ProfilerStep#")
    )
    spans = [
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("ph") == "X" and event["name"] == f"{backend}:all_reduce"
    ]
    ends = [
        max(end for start, end in spans if begin <= start < after)
        for begin, after in zip(begins, [*begins[1:], float("inf")], strict=True)
    ]
    return [0.0, *(after - before for before, after in pairwise(ends))]


def test_the_changed_run_of_a_recorded_trace_is_predicted() -> None:
    run = predict.load(TRACES / "gloo")
    slower = predict.predict(run, [predict.parse_change("compute x3")], samples=8)
    assert slower.p50_ns > predict.predict(run, samples=8).p50_ns


Change = Callable[[list[dict[str, Any]]], None]


def without_rank(given: list[dict[str, Any]]) -> None:
    given[1]["distributedInfo"]["rank"] = 0


def without_world(given: list[dict[str, Any]]) -> None:
    del given[0]["distributedInfo"]


def without_shapes(given: list[dict[str, Any]]) -> None:
    for event in given[1]["traceEvents"]:
        event.get("args", {}).pop("Input Dims", None)


def without_steps(given: list[dict[str, Any]]) -> None:
    for trace in given:
        trace["traceEvents"] = [
            event
            for event in trace["traceEvents"]
            if not str(event["name"]).startswith(("ProfilerStep#", "Optimizer.step#"))
        ]


def of_nccl(given: list[dict[str, Any]]) -> None:
    for event in given[0]["traceEvents"]:
        if event["name"] == "gloo:all_reduce":
            event["name"] = "nccl:all_reduce"


def other_clock(given: list[dict[str, Any]]) -> None:
    given[1]["baseTimeNanoseconds"] += 60 * 10**9


def without_duration(given: list[dict[str, Any]]) -> None:
    event = next(each for each in given[0]["traceEvents"] if each.get("ph") == "X")
    event.update(name="cut", dur=None)


def without_events(given: list[dict[str, Any]]) -> None:
    given[1]["traceEvents"] = None


def write_changed(folder: Path, change: Change) -> None:
    """Write gloo's recorded traces, changed, one file for each rank."""
    given = traces("gloo")
    change(given)
    for rank, trace in enumerate(given):
        (folder / f"{rank}.json").write_text(json.dumps(trace))


@pytest.mark.parametrize(
    ("change", "start", "end"),
    [
        (without_rank, "{dir}/0.json: several traces are of rank 0", ""),
        (
            without_world,
            "{dir}/0.json has no distributedInfo: the profiler ran before init_process_group",
            "",
        ),
        (
            without_shapes,
            "{dir}/1.json: 'gloo:all_reduce' at ",
            "record with record_shapes=True",
        ),
        (
            without_steps,
            "{dir}/0.json tells no steps apart: call profiler.step() after each step, or use an "
            "optimizer of torch.optim",
            "",
        ),
        (
            of_nccl,
            "{dir}/0.json has no all_reduce of gloo or slackline, which alone show when a rank "
            "posts an all_reduce; it has 'nccl:all_reduce'",
            "",
        ),
        (
            other_clock,
            "{dir}/0.json: all_reduce 0 of step 0 ends ",
            "the clocks of the ranks disagree",
        ),
        (
            without_duration,
            "{dir}/0.json: dur of event ",
            "('cut') must be a number from 0 on, not None",
        ),
        (without_events, "{dir}/1.json is no trace of torch.profiler: it has no traceEvents", ""),
    ],
)
def test_a_trace_that_gives_no_prediction_is_refused(
    tmp_path: Path, change: Change, start: str, end: str
) -> None:
    write_changed(tmp_path, change)
    with pytest.raises(UsageError) as caught:
        predict.load(tmp_path)
    assert str(caught.value).startswith(start.format(dir=tmp_path))
    assert str(caught.value).endswith(end)


def test_a_missing_rank_is_named(tmp_path: Path) -> None:
    (tmp_path / "0.json").write_text(json.dumps(traces("gloo")[0]))
    with pytest.raises(UsageError) as caught:
        predict.load(tmp_path)
    assert str(caught.value) == f"{tmp_path} has no trace of rank 1 of 2"


def test_a_cut_file_is_named(tmp_path: Path) -> None:
    packed = (TRACES / "gloo" / "0.json.gz").read_bytes()
    (tmp_path / "0.json.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UsageError) as caught:
        predict.load(tmp_path)
    assert str(caught.value) == f"{tmp_path}/0.json.gz is not JSON, or it is cut"


def test_without_steps_of_the_profiler_the_optimizer_tells_them_apart(tmp_path: Path) -> None:
    for rank, trace in enumerate(traces("gloo")):
        trace["traceEvents"] = [
            event
            for event in trace["traceEvents"]
            if not str(event["name"]).startswith("ProfilerStep#")
        ]
        (tmp_path / f"{rank}.json").write_text(json.dumps(trace))
    run = predict.load(tmp_path)
    # The end of each optimizer's step begins a step; the reductions before the first are left out.
    assert len(run.steps) == STEPS - 2


def test_an_empty_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has neither telemetry"):
        predict.load(tmp_path)
    with pytest.raises(UsageError) as caught:
        predict.load(tmp_path / "none")
    assert str(caught.value) == f"{tmp_path}/none is not a directory"


def steps_of(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in trace["traceEvents"] if each["name"].startswith("ProfilerStep#")]


def of_step(trace: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Return the all_reduces that begin within a step."""
    step = steps_of(trace)[number]
    return [
        each
        for each in trace["traceEvents"]
        if each["name"] == "gloo:all_reduce" and step["ts"] <= each["ts"] < step["ts"] + step["dur"]
    ]


def with_a_flag(kind: str, count: int = 1) -> Change:
    """Return a change that adds an all_reduce of `count` elements to the end of each step."""

    def change(given: list[dict[str, Any]]) -> None:
        for trace in given:
            for number in range(len(steps_of(trace))):
                last = max(of_step(trace, number), key=lambda each: float(each["ts"]))
                args = {"Input Dims": [[count]], "Input type": [kind]}
                trace["traceEvents"].append({**last, "ts": last["ts"] + 1, "args": args})

    return change


def with_operators(given: list[dict[str, Any]]) -> None:
    """Add torch's operator, which precedes each all_reduce in a profile."""
    for trace in given:
        posts = [each for each in trace["traceEvents"] if each["name"] == "gloo:all_reduce"]
        for post in posts:
            begin = {"name": "c10d::allreduce_", "cat": "cpu_op", "ts": post["ts"] - 0.02}
            trace["traceEvents"].append({**post, **begin, "dur": 0.01})


def silent(*numbers: int) -> Change:
    """Return a change that takes the all_reduces out of these steps."""

    def change(given: list[dict[str, Any]]) -> None:
        for trace in given:
            gone = [each for number in numbers for each in of_step(trace, number)]
            trace["traceEvents"] = [each for each in trace["traceEvents"] if each not in gone]

    return change


@pytest.mark.parametrize(
    ("change", "groups", "steps"),
    [
        *((with_a_flag(kind), LAYERS + 1, STEPS - 1) for kind in ("bool", "signed char")),
        (with_a_flag("short unsigned int"), LAYERS + 1, STEPS - 1),
        (with_a_flag("c10::complex<double>"), LAYERS + 1, STEPS - 1),
        (with_a_flag("float", 0), LAYERS, STEPS - 1),
        (with_operators, LAYERS, STEPS - 1),
        (silent(0), LAYERS, STEPS - 2),
        (silent(1), LAYERS, STEPS - 2),
        (silent(1, 3), LAYERS, STEPS - 3),
        (silent(0, 2), LAYERS, STEPS - 3),
        (silent(STEPS - 1), LAYERS, STEPS - 2),
    ],
)
def test_traces_of_ordinary_loops_are_read(
    tmp_path: Path, change: Change, groups: int, steps: int
) -> None:
    """Check flags of other types, gradients that several steps accumulate, and empty tensors."""
    write_changed(tmp_path, change)
    run = predict.load(tmp_path)
    assert (len(run.groups), len(run.steps)) == (groups, steps)
    assert min(group.nbytes for group in run.groups) > 0

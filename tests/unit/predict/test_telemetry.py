"""Tests that a run is read from telemetry, and its network found from its reductions."""

import statistics
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from written_runs import Written

from slackline import predict
from slackline.errors import UsageError
from slackline.records import file_of


@pytest.fixture
def written(tmp_path: Path) -> tuple[Written, Path]:
    run = Written()
    run.write(tmp_path / "telemetry")
    return run, tmp_path


def test_the_groups_hosts_and_steps_are_those_of_the_run(written: tuple[Written, Path]) -> None:
    made, directory = written
    run = predict.load(directory)
    assert (run.ranks, run.hosts, run.nics) == (4, 4, 1)
    assert [group.nbytes for group in run.groups] == list(made.sizes)
    assert {group.plan for group in run.groups} == {"ring"}
    assert len(run.steps) == made.steps - 1
    assert run.job is None


def test_the_computations_are_those_without_waits(written: tuple[Written, Path]) -> None:
    made, directory = written
    for number, step in enumerate(predict.load(directory).steps, start=1):
        for rank, found in enumerate(step.ranks):
            times = made.times(rank, number)
            # Each of two conversions to nanoseconds rounds down.
            assert found.before_ns == pytest.approx(times.before_ps / 1000, abs=4)
            assert found.forward_ns == pytest.approx(sum(times.forward_ps) / 1000, abs=4)
            wanted = [each / 1000 for each in reversed(times.backward_ps)]
            assert list(found.backward_ns) == pytest.approx(wanted, abs=4)


def test_the_rate_is_found_from_the_reductions(written: tuple[Written, Path]) -> None:
    made, directory = written
    run = predict.load(directory)
    assert run.link.one_way_ns == made.one_way_ns
    assert run.link.rate_bps == pytest.approx(made.rate_bps, rel=0.002)


def test_a_run_of_one_host_has_memory_in_place_of_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Written(steps=5)
    made.write(tmp_path)
    for path in tmp_path.glob("*.jsonl"):  # bit 31 of the rails stands for shared memory
        path.write_text(path.read_text().replace(",0,3,1,5", f",0,3,{1 << 31},5"))
    run = predict.load(tmp_path)
    assert (run.hosts, run.link.one_way_ns) == (1, 0)
    with pytest.raises(UsageError, match="all its ranks share one host, and no network was"):
        predict.predict(run, [predict.Rate(10**9)])
    slower = predict.predict(run, [predict.Compute(2.0)], samples=8)
    assert slower.p50_ns > predict.predict(run, samples=8).p50_ns


def flawed(tmp_path: Path, flaw: str) -> Path:
    """Write a run with a flaw."""
    made = Written(steps=4)
    made.write(tmp_path)
    last = file_of(tmp_path, 3)
    lines = last.read_text().splitlines()
    match flaw:
        case "missing":
            file_of(tmp_path, 1).unlink()
        case "no header":
            lines = lines[1:]
        case "no steps":
            lines = [line for line in lines if '"step"' not in line[:20]]
        case "lost":
            lines = [line.replace('"lost":0', '"lost":7') for line in lines]
        case "two processes":
            lines.append(lines[0].replace('"process":103', '"process":200'))
        case "version":
            lines[0] = lines[0].replace('"version":2', '"version":9')
        case "two optimizers":
            lines.append(lines[2].replace('"optimizer":0', '"optimizer":1'))
        case "other groups":
            lines[-2] = lines[-2].replace("524288", "524284")
    if last.exists():
        last.write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


@pytest.mark.parametrize(
    ("flaw", "sentence"),
    [
        ("missing", "{dir} has no telemetry of rank 1"),
        (
            "no header",
            "{dir}/rank-00003.jsonl:1: the records have no version of the schema, and this "
            "slackline reads version 2; the rest of the file is left out",
        ),
        (
            "no steps",
            "{dir}/rank-00003.jsonl has no steps of slackline.overlap, {dir}/rank-00000.jsonl has "
            "them",
        ),
        ("lost", "{dir}/rank-00003.jsonl lacks 28 operations that the engine lost"),
        (
            "two processes",
            "{dir}/rank-00003.jsonl has the records of 2 processes: give the telemetry of one run",
        ),
        (
            "version",
            "{dir}/rank-00003.jsonl:1: the records have version 9 of the schema, and this "
            "slackline reads version 2; the rest of the file is left out",
        ),
        (
            "two optimizers",
            "{dir}/rank-00003.jsonl has steps of 2 optimizers: predictions need a model with one "
            "optimizer",
        ),
        (
            "other groups",
            "{dir} has 0 successive steps at its end with the same groups of gradients on all "
            "ranks; at least 3 are needed",
        ),
    ],
)
def test_telemetry_that_gives_no_prediction_is_refused(
    tmp_path: Path, flaw: str, sentence: str
) -> None:
    directory = flawed(tmp_path, flaw)
    with pytest.raises(UsageError) as caught:
        predict.load(directory)
    assert str(caught.value) == sentence.format(dir=directory)


def test_a_run_under_changing_faults_is_refused(tmp_path: Path) -> None:
    Written(steps=4).write(tmp_path / "telemetry")
    job = predict.Job(
        folder="/", script="train.py", ranks=4, faults=("link 0-1 delay 1ms from 2s",)
    )
    predict.write_job(tmp_path, job)
    assert predict.read_job(tmp_path) == job
    with pytest.raises(UsageError, match="was measured while faults changed"):
        predict.load(tmp_path)
    module = replace(job, script="job.train", module=True)
    predict.write_job(tmp_path, module)
    assert predict.read_job(tmp_path) == module
    predict.write_job(tmp_path, replace(job, faults=(), rate_bps=2 * 10**8, lab=True))
    assert predict.load(tmp_path).nominal_bps == 2 * 10**8


def in_lab(directory: Path, made: Written, **given: object) -> Path:
    """Write a run in a lab, whose NICs carry 95 % of their nominal rate of 200 Mbit/s."""
    made.write(directory / "telemetry")
    values = {"folder": "/", "script": "train.py", "ranks": 4, "lab": True, "rate_bps": 2 * 10**8}
    job = predict.Job(**{**values, "switch": "auto", **given})  # type: ignore[arg-type]
    predict.write_job(directory, job)
    return directory


def test_the_token_buckets_of_a_lab_are_part_of_its_network(tmp_path: Path) -> None:
    made = Written(rate_bps=190 * 10**6, burst_bytes=16 << 10, sizes=(1 << 16,) * 4, steps=8)
    run = predict.load(in_lab(tmp_path, made))
    assert run.burst_bytes == 16 << 10
    assert run.link.rate_bps == pytest.approx(190 * 10**6, rel=0.02)
    truth = statistics.median(made.simulate(rate_bps=38 * 10**6).step_ps) / 1000
    found = predict.predict(run, [predict.parse_change("rate 40Mbit")], samples=16)
    assert found.p50_ns == pytest.approx(truth, rel=0.04)


@pytest.mark.parametrize(
    "given",
    [
        {"switch": "user"},
        {"faults": ("link 0-1 delay 1ms",)},
        {"lab": False, "rate_bps": None, "switch": None},
    ],
)
def test_a_network_without_token_buckets_has_none(tmp_path: Path, given: dict[str, object]) -> None:
    run = predict.load(in_lab(tmp_path, Written(steps=4, sizes=(1 << 16,)), **given))
    assert run.burst_bytes == 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "line 1 column 2 (char 1): '{'"),
        ("{}", 'is not of the kind "job": slackline run --keep writes it'),
        ('{"kind": "job", "version": 2}', ": version must be 1, not 2"),
        ('{"kind": "job", "version": 1, "folder": 3}', ": folder must be text, not 3"),
        (
            '{"kind": "job", "version": 1, "folder": "/", "script": "a.py", "ranks": 0}',
            ": ranks must be an integer >= 1, not 0",
        ),
    ],
)
def test_a_wrong_job_file_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / predict.JOB_FILE).write_text(text)
    with pytest.raises(UsageError) as caught:
        predict.read_job(tmp_path)
    assert str(caught.value).endswith(sentence)
    assert str(tmp_path / predict.JOB_FILE) in str(caught.value)


def without_steps(directory: Path) -> None:
    """Remove the records that only slackline.overlap writes."""
    for path in directory.glob("rank-*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if '"step"' not in line[:20]))


@pytest.mark.parametrize(
    "sizes", [pytest.param((1 << 19, 1 << 18, 1 << 17), marks=pytest.mark.slow), (1 << 18,) * 3]
)
def test_steps_are_told_apart_by_pauses_without_records_of_steps(
    tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    made = Written(sizes=sizes, policy="buckets", steps=10)
    trained = made.write(tmp_path)
    without_steps(tmp_path)
    run = predict.load(tmp_path)
    assert (run.policy, len(run.steps), run.notes) == ("buckets", 9, ())
    assert [group.nbytes for group in run.groups] == list(sizes)
    assert run.link.rate_bps == pytest.approx(made.rate_bps, rel=0.01)
    ends = [max(end for _, end in ranks[0]) / 1000 for ranks in trained.reductions_ps]
    wanted = [after - before for before, after in pairwise(ends)]
    assert [step.wall_ns for step in run.steps] == pytest.approx(wanted, rel=0.03)
    truth = statistics.median(made.simulate(rate_bps=4 * 10**8).step_ps) / 1000
    found = predict.predict(run, [predict.parse_change("rate 400Mbit")], samples=24)
    assert found.p50_ns == pytest.approx(truth, rel=0.03)


def test_all_reduces_that_do_not_repeat_are_no_steps(tmp_path: Path) -> None:
    Written(steps=2).write(tmp_path)
    without_steps(tmp_path)
    with pytest.raises(UsageError) as caught:
        predict.load(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: the all_reduces at its end do not repeat 3 times with a pause after each "
        "time, so that no steps can be told apart"
    )


def test_ranks_with_other_all_reduces_are_refused(tmp_path: Path) -> None:
    Written(policy="buckets", steps=5).write(tmp_path)
    without_steps(tmp_path)
    path = file_of(tmp_path, 2)
    path.write_text(path.read_text().replace("524288", "524284", 1))
    with pytest.raises(UsageError) as caught:
        predict.load(tmp_path)
    assert str(caught.value) == (
        f"{path} has other all_reduces than {file_of(tmp_path, 0)}: the ranks of a run post the "
        "same ones"
    )

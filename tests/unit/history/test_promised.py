"""Tests of predicted step times beside the steps that they concern."""

from pathlib import Path

from slackline.history import Job
from slackline.records import (
    SCHEMA_VERSION,
    FileHeader,
    PipelineStep,
    Promise,
    Record,
    StepSummary,
    encode,
    file_of,
)

START_NS = 1_700_000_000_000_000_000


def _write(directory: Path, *records: Record) -> None:
    with file_of(directory, 0).open("a") as file:
        file.writelines(f"{encode(record)}\n" for record in records)


def test_a_promised_step_time_is_compared_with_the_steps_until_the_next_promise(
    tmp_path: Path,
) -> None:
    def promise(after_ns: int, source: str, wall_ns: int) -> Promise:
        return Promise(
            rank=0, time_ns=START_NS + after_ns, source=source, choice="?", wall_ns=wall_ns
        )

    def ended(after_ns: int, wall_ns: int, optimizer: int = 0) -> StepSummary:
        return StepSummary(
            rank=0,
            step=0,
            time_ns=START_NS + after_ns,
            wall_ns=wall_ns,
            exposed_ns=0,
            reduced_bytes=0,
            parameters=0,
            waited=0,
            optimizer=optimizer,
        )

    def stage(after_ns: int, wall_ns: int) -> PipelineStep:
        return PipelineStep(
            rank=0,
            step=0,
            time_ns=START_NS + after_ns,
            wall_ns=wall_ns,
            computing_ns=0,
            waiting_ns=0,
            plan="1f1b",
            policy="ready",
        )

    header = FileHeader(
        version=SCHEMA_VERSION,
        rank=0,
        time_ns=START_NS,
        monotonic_ns=0,
        host="host0",
        clock="boot",
        process=100,
    )
    _write(tmp_path, header, promise(100, "groups", 30), promise(100, "schedule", 70))
    _write(tmp_path, ended(120, 21), stage(99, 5))  # These steps began before the promises.
    _write(tmp_path, ended(150, 30), ended(150, 1, optimizer=1), ended(200, 40))
    _write(tmp_path, stage(100, 80))
    _write(tmp_path, ended(300, 50), promise(300, "groups", 60), ended(370, 70))
    job = Job(tmp_path)
    job.update()
    assert [
        (each.promise.source, each.promise.wall_ns, each.count, each.measured_ns)
        for each in job.ranks[0].promises
    ] == [("groups", 30, 3, 40), ("schedule", 70, 1, 80), ("groups", 60, 1, 70)]

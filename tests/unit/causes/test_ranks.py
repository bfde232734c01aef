"""Tests of slow hosts, slow ranks and slow data loaders, from the steps of all ranks."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from invented_records import header, opened, operation, step, verdict
from made_records import MS_NS as MS
from made_records import SECOND_NS as S
from made_records import START_NS, link

from slackline.causes import Cause, Diagnosis, Kind
from slackline.history import Job
from slackline.records import PipelineStep

STEP_NS = 200 * MS
Change = Callable[[int, int], Mapping[str, Any]]
"""The changed arguments of `step`, by rank and number of the step."""


def _named(
    tmp_path: Path,
    change: Change,
    *,
    hosts: tuple[str, ...] = ("a", "b", "c", "d"),
    steps: int = 60,
) -> list[tuple[int, Cause]]:
    """Return the named causes of ranks that take a step every 200 ms, with the step's number."""
    random = Random(5)
    job = Job(tmp_path)
    for rank, host in enumerate(hosts):
        job.take(header(rank, host))
        job.take(opened(rank, len(hosts)))
    diagnosis = Diagnosis(job)
    named = []
    for number in range(steps):
        for rank in range(len(hosts)):
            usual = {"compute_ns": random.randrange(97 * MS, 103 * MS)}
            changed = {**usual, **change(rank, number)}
            job.take(step(rank, number, number * STEP_NS, **changed))
        now_ns = START_NS + number * STEP_NS
        job.settle(now_ns)
        named += [(number, cause) for cause in diagnosis.update(now_ns)]
    return named


def _one(rank: int, since: int, **changed: Any) -> Change:
    return lambda of, number: changed if of == rank and number >= since else {}


def test_a_job_as_usual_has_no_cause(tmp_path: Path) -> None:
    assert _named(tmp_path, lambda rank, number: {}, steps=300) == []


def test_a_rank_that_computes_slowly_is_named_within_two_seconds(tmp_path: Path) -> None:
    ((number, cause),) = _named(tmp_path, _one(2, 30, compute_ns=180 * MS))
    assert (cause.kind, cause.name, cause.ranks) == (Kind.RANK, "rank 2", (2,))
    assert cause.sentence == (
        "rank 2: it computes 80.1 ms a step longer than its usual 99.9 ms; "
        "most other ranks compute as usual"
    )
    assert cause.since_ns == START_NS + 30 * STEP_NS - 205 * MS
    assert 34 <= number <= 40


def test_steps_with_and_without_details_have_the_same_pace(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for rank in range(3):
        job.take(header(rank))
        job.take(opened(rank, 3))
    diagnosis = Diagnosis(job)
    for number in range(90):
        for rank in range(3):
            made = step(rank, number, number * STEP_NS, late_ns=150 * MS)
            if rank == 1 and number % 30 >= 10:
                groups = {name: () for name in vars(made) if name.startswith("group")}
                made = replace(made, **groups, detailed=False)
            job.take(made)
        assert diagnosis.update(START_NS + number * STEP_NS) == []


def test_waits_for_a_slow_peer_change_no_rank_s_pace(tmp_path: Path) -> None:
    def change(rank: int, number: int) -> Mapping[str, Any]:
        return {"late_ns": 220 * MS if number >= 30 else 20 * MS}

    assert _named(tmp_path, change) == []


def test_a_rank_whose_thread_waits_for_cores_names_its_host(tmp_path: Path) -> None:
    change = _one(1, 30, compute_ns=180 * MS, delay_ns=70 * MS)
    ((_, cause),) = _named(tmp_path, change)
    assert (cause.kind, cause.name, cause.ranks) == (Kind.HOST, "host b", (1,))
    assert cause.sentence == (
        "host b: its cores are slow or taken: rank 1 computes 79.1 ms a step longer than its usual "
        "101 ms and waits 67.2 ms more for a core"
    )


def test_a_host_is_named_by_waits_beyond_those_of_other_hosts_alone(tmp_path: Path) -> None:
    """Let rank 1 wait for less than twice the time that others wait, and then for more."""

    def change(rank: int, number: int, waits_ns: int) -> Mapping[str, Any]:
        if rank != 1:
            return {"compute_ns": 180 * MS, "delay_ns": 80 * MS}
        taken_ns = waits_ns if number >= 30 else 0
        return {"compute_ns": 100 * MS + taken_ns, "delay_ns": taken_ns}

    for waits_ns in (80 * MS, 140 * MS):
        alike = partial(change, waits_ns=waits_ns)
        assert _named(tmp_path, alike) == []
    ((_, cause),) = _named(tmp_path, lambda rank, number: change(rank, number, 170 * MS))
    assert (cause.kind, cause.name) == (Kind.HOST, "host b")


def test_all_ranks_of_a_busy_machine_wait_and_no_cause_is_named(tmp_path: Path) -> None:
    random = Random(6)
    noise = [random.randrange(60 * MS, 100 * MS) for _ in range(4 * 90)]

    def change(rank: int, number: int) -> Mapping[str, Any]:
        if not 30 <= number < 60:
            return {}
        waits_ns = noise[4 * number + rank]
        return {"compute_ns": 100 * MS + waits_ns, "delay_ns": waits_ns}

    assert _named(tmp_path, change, steps=90) == []


def test_waits_between_two_steps_are_the_host_s_and_not_the_loader_s(tmp_path: Path) -> None:
    change = _one(3, 30, pause_ns=95 * MS, delay_ns=85 * MS, run_ns=105 * MS)
    ((_, cause),) = _named(tmp_path, change)
    assert (cause.kind, cause.name) == (Kind.HOST, "host d")
    assert cause.sentence == (
        "host d: its cores are slow or taken: rank 3 takes 90 ms more between two steps than "
        "usual and waits 81.6 ms more for a core"
    )


def test_waits_that_are_not_known_are_not_zero(tmp_path: Path) -> None:
    """Leave the waits of rank 0 unknown: its host is neither named by them nor compared."""

    def change(rank: int, number: int) -> Mapping[str, Any]:
        slow = rank == 1 and number >= 30
        waits_ns = 80 * MS if slow else 0
        return {"compute_ns": 100 * MS + waits_ns, "delay_ns": waits_ns, "known": rank != 0}

    ((_, cause),) = _named(tmp_path, change)
    assert (cause.kind, cause.name) == (Kind.HOST, "host b")
    unknown = _one(1, 30, compute_ns=180 * MS)
    ((_, cause),) = _named(tmp_path, lambda *place: {**unknown(*place), "known": False})
    assert (cause.kind, cause.name) == (Kind.RANK, "rank 1")


def test_a_rank_with_more_work_on_a_busy_host_is_named_and_not_the_host(tmp_path: Path) -> None:
    def change(rank: int, number: int) -> Mapping[str, Any]:
        work_ns = 150 * MS if rank == 1 and number >= 30 else 50 * MS
        return {"compute_ns": 5 * work_ns // 2, "delay_ns": 3 * work_ns // 2}

    ((_, cause),) = _named(tmp_path, change)
    assert (cause.kind, cause.name) == (Kind.RANK, "rank 1")


def test_a_host_whose_ranks_are_all_slower_is_named(tmp_path: Path) -> None:
    def change(rank: int, number: int) -> Mapping[str, Any]:
        return {"compute_ns": 150 * MS} if rank in (2, 3) and number >= 30 else {}

    hosts = ("a", "a", "b", "b", "c", "c")
    ((_, cause),) = _named(tmp_path, change, hosts=hosts)
    assert (cause.kind, cause.name, cause.ranks) == (Kind.HOST, "host b", (2, 3))
    assert cause.sentence == (
        "host b: its cores are slow or taken: all of its 2 ranks compute longer, and those of "
        "others do not"
    )


def test_a_slow_rank_that_answers_late_too_names_its_host(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for rank in range(4):
        job.take(header(rank))
        job.take(opened(rank, 4))
    diagnosis = Diagnosis(job)
    named = []
    for number in range(60):
        for rank in range(4):
            slow = rank == 3 and number >= 30
            taken = 180 * MS if slow else 100 * MS
            job.take(step(rank, number, number * STEP_NS, compute_ns=taken))
            if number % 5 == 0:
                for peer in set(range(4)) - {rank}:
                    job.take(link(rank, peer, number * STEP_NS))
        if number == 32:
            for peer in range(3):
                job.take(verdict(peer, 3, number * STEP_NS))
        now_ns = START_NS + number * STEP_NS
        job.settle(now_ns)
        named += diagnosis.update(now_ns)
    assert [(cause.kind, cause.name) for cause in named] == [(Kind.HOST, "host node3")]


def test_a_loader_that_stalls_is_named(tmp_path: Path) -> None:
    ((_, cause),) = _named(tmp_path, _one(0, 30, pause_ns=85 * MS))
    assert (cause.kind, cause.name, cause.ranks) == (Kind.LOADER, "the data loader of rank 0", (0,))
    assert cause.sentence == (
        "the data loader of rank 0: 80 ms more between two steps than the usual 5 ms, while "
        "the rank computes as usual"
    )


@pytest.mark.parametrize("changed", [{"compute_ns": 180 * MS}, {"pause_ns": 90 * MS}])
def test_a_change_of_all_ranks_is_not_a_rank_s_and_is_learned(
    tmp_path: Path, changed: Mapping[str, Any]
) -> None:
    def change(rank: int, number: int) -> Mapping[str, Any]:
        found = dict(changed) if number >= 30 else {}
        if rank == 2 and number >= 80:
            found["compute_ns"] = 350 * MS
        return found

    ((number, cause),) = _named(tmp_path, change, steps=120)
    assert (cause.kind, cause.name) == (Kind.RANK, "rank 2")
    assert number >= 80


def test_one_long_step_in_twenty_is_no_cause(tmp_path: Path) -> None:
    def change(rank: int, number: int) -> Mapping[str, Any]:
        return {"pause_ns": 4 * S} if rank == 0 and number % 20 == 19 else {}

    assert _named(tmp_path, change, steps=200) == []


def test_a_slow_stage_of_a_pipeline_is_named(tmp_path: Path) -> None:
    job = Job(tmp_path)
    for rank in range(4):
        job.take(header(rank))
    diagnosis = Diagnosis(job)
    named = []
    for number in range(60):
        for rank in range(4):
            slow = rank == 1 and number >= 30
            job.take(
                PipelineStep(
                    rank=rank,
                    step=number,
                    time_ns=START_NS + number * STEP_NS,
                    wall_ns=STEP_NS - MS,
                    computing_ns=160 * MS if slow else 100 * MS,
                    waiting_ns=30 * MS,
                    plan="1f1b",
                    policy="ready",
                )
            )
        named += diagnosis.update(START_NS + number * STEP_NS)
    assert [(cause.kind, cause.name) for cause in named] == [(Kind.RANK, "rank 1")]


@pytest.mark.parametrize("part", ["pause", "compute"])
def test_waits_in_the_script_s_own_collectives_change_no_pace(tmp_path: Path, part: str) -> None:
    """Let rank 1 compute slowly, so that rank 0 waits in an all_reduce that the script calls."""
    job = Job(tmp_path)
    for rank in range(2):
        job.take(header(rank))
        job.take(opened(rank, 2))
    diagnosis = Diagnosis(job)
    named = []
    for number in range(60):
        at_ns = number * STEP_NS
        slow = number >= 30
        waited_ns = 80 * MS if slow else 0
        usual = {"pause_ns": 5 * MS, "compute_ns": 100 * MS, "late_ns": 0}
        changed = {**usual, f"{part}_ns": usual[f"{part}_ns"] + waited_ns}
        ended_ns = at_ns - 101 * MS if part == "pause" else at_ns - 10 * MS
        if slow:
            job.take(operation(0, ended_ns, waited_ns))
        job.take(step(0, number, at_ns, **changed))
        job.take(step(1, number, at_ns, compute_ns=180 * MS if slow else 100 * MS))
        job.take(operation(0, at_ns + MS, 0))
        job.settle(START_NS + at_ns)
        named += diagnosis.update(START_NS + at_ns)
    assert [(cause.kind, cause.name) for cause in named] == [(Kind.RANK, "rank 1")]

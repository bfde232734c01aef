"""Tests of a job's state, from files that ranks are still writing."""

import dataclasses
from pathlib import Path

import made_records
import pytest
from made_records import SECOND_NS, START_NS, write
from made_records import link as _link
from made_records import verdict as _verdict

from slackline.detect import Condition
from slackline.errors import UsageError
from slackline.history import Job, State
from slackline.records import (
    SCHEMA_VERSION,
    ClockOffset,
    Counters,
    Decision,
    FileHeader,
    Gap,
    GroupOpened,
    Operation,
    Operations,
    PipelineStep,
    RunSummary,
    StepSummary,
    encode,
    file_of,
)


def _header(rank: int) -> FileHeader:
    return made_records.header(rank, monotonic_ns=5 * SECOND_NS)


def _step(rank: int, number: int) -> StepSummary:
    return made_records.step(rank, number, hidden_ns=3_000_000)


def _step_at(rank: int, number: int, after_ns: int) -> StepSummary:
    return dataclasses.replace(_step(rank, number), time_ns=START_NS + after_ns)


def _opened(rank: int, epoch: int = 1, members: tuple[int, ...] = (0, 1)) -> GroupOpened:
    return GroupOpened(rank=rank, time_ns=START_NS, size=len(members), epoch=epoch, members=members)


def test_ranks_are_followed_while_they_write(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert job.update() == 0
    assert job.world_size == 0
    write(tmp_path, 1, _header(1), _step(1, 0))
    assert job.update() == 2
    assert list(job.ranks) == [1]
    opened = GroupOpened(rank=0, time_ns=START_NS, size=4, epoch=1, members=(0, 1, 2, 3))
    write(tmp_path, 0, _header(0), opened, _step(0, 0), _step(0, 1))
    write(tmp_path, 1, _step(1, 1))
    assert job.update() == 5
    assert list(job.ranks) == [0, 1]
    assert job.world_size == 4
    assert [rank.step_count for rank in job.ranks.values()] == [2, 2]
    rank = job.ranks[0]
    assert rank.header is not None
    assert (rank.header.host, rank.header.process) == ("host0", 100)
    assert rank.median_step().wall_ns == 20_000_000
    assert rank.median_step().share == 0.25
    assert (rank.exposed_ns, rank.hidden_ns, rank.reduced_bytes) == (10_000_000, 6_000_000, 2000)
    assert job.update() == 0


def test_times_of_the_monotonic_clock_become_unix_time(tmp_path: Path) -> None:
    write(tmp_path, 0, _header(0), _link(0, 1, 7 * SECOND_NS), _link(0, 1, 8 * SECOND_NS))
    job = Job(tmp_path)
    job.update()
    link = job.links[0, 1, 0]
    assert [time_ns - START_NS for time_ns, _ in link.reports] == [2 * SECOND_NS, 3 * SECOND_NS]
    assert job.ranks[0].seen_ns == START_NS + 3 * SECOND_NS
    assert (link.sent_bytes, link.received_bytes) == (50_000_000, 25_000_000)
    assert link.sent_bits_per_second == 200_000_000
    assert link.received_bits_per_second == 100_000_000


def test_operations_are_summed_by_kind_without_those_of_the_library(tmp_path: Path) -> None:
    # Columns: collective, receives, peer, bytes, dtype, group, tag, sequence, internal, plan,
    # rails, posted, started, ended, waited, failed.
    rows = [
        [1, 0, -1, 400, 1, 1, -1, 0, 0, 1, 1, 1000, 1100, 2000, 500, 0],
        [1, 0, -1, 600, 1, 1, -1, 1, 0, 1, 1, 3000, 3100, 5000, 700, 1],
        [1, 0, -1, 8, 1, 1, -1, 2, 1, 1, 1, 6000, 6100, 7000, 0, 0],
        [10, 1, 1, 50, 1, 1, 3, 0, 0, 0, 1, 6000, 6100, 7000, 100, 0],
    ]
    batch = Operations(rank=0, lost=3, rows=tuple(Operation(*row) for row in rows))
    write(tmp_path, 0, _header(0), batch)
    job = Job(tmp_path)
    job.update()
    totals = job.ranks[0].totals
    assert sorted(totals) == ["all_reduce", "recv"]
    reduced = totals["all_reduce"]
    assert (reduced.count, reduced.failed, reduced.bytes) == (2, 1, 1000)
    assert (reduced.running_ns, reduced.waited_ns) == (3000, 1200)
    assert job.ranks[0].lost == 3


def test_both_ends_of_a_link_give_one_finding_with_its_own_time(tmp_path: Path) -> None:
    for rank in range(3):
        write(tmp_path, rank, _header(rank))
    write(tmp_path, 0, _verdict(0, 0, 1, 10 * SECOND_NS, "slow"))
    write(tmp_path, 1, _verdict(1, 0, 1, 10 * SECOND_NS + 1000, "slow"))
    write(tmp_path, 0, _verdict(0, 0, 1, 20 * SECOND_NS, "back"))
    job = Job(tmp_path)
    job.update()
    told = [(finding.time_ns - START_NS, finding.sentence) for finding in job.findings]
    assert told[0] == (11 * SECOND_NS, "link 0>1 is slow")
    assert [sentence for _, sentence in told] == ["link 0>1 is slow", "link 0>1 is back"]
    assert [(each.since_ns, each.until_ns) for each in job.episodes] == [
        (10 * SECOND_NS, 20 * SECOND_NS)
    ]


def test_a_process_that_restarts_is_counted_and_runs_again(tmp_path: Path) -> None:
    write(tmp_path, 0, _header(0), Counters(rank=0, time_ns=START_NS, values={"sleeps": 1}))
    job = Job(tmp_path)
    job.update()
    assert job.ranks[0].counters is not None
    write(tmp_path, 0, _header(0))
    job.update()
    assert job.ranks[0].counters is None
    assert job.ranks[0].processes == 2


def test_records_that_are_missing_or_damaged_are_told(tmp_path: Path) -> None:
    decision = Decision(rank=0, time_ns=1, subject="plan", choice="ring", reason="measured")
    write(tmp_path, 0, _header(0), Gap(rank=0, time_ns=1, lost=7, reason="disk full"), decision)
    with file_of(tmp_path, 0).open("a") as file:
        file.write("{cut\n")
    job = Job(tmp_path)
    job.update()
    assert job.ranks[0].lost == 7
    assert list(job.decisions) == [decision]
    damaged, missing = job.problems
    assert missing == "rank 0: 7 records missing: disk full"
    assert damaged.startswith(f"{file_of(tmp_path, 0)}:4: the line is cut or damaged")


def test_an_operation_of_no_known_kind_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    wrong = made_records.operations(0, (99, 0, -1, 8, 9, 1, -1, 0, 0, 1, 1, 1, 2, 3, 0, 0))
    write(tmp_path, 0, _header(0), wrong, _step(0, 0))
    job = Job.recorded(tmp_path)
    assert list(job.problems) == ["rank 0: operations are damaged: 99 is not a valid Collective"]
    assert (job.ranks[0].step_count, list(job.ranks[0].operations)) == (1, [])


def test_a_kept_job_s_directory_may_be_given(tmp_path: Path) -> None:
    (tmp_path / "telemetry").mkdir()
    write(tmp_path / "telemetry", 0, _header(0))
    job = Job(tmp_path)
    assert job.update() == 1
    with pytest.raises(UsageError, match="there is no directory"):
        Job(tmp_path / "nowhere")


@pytest.mark.parametrize("live", [False, True])
def test_times_of_all_hosts_are_those_of_the_lowest_rank_s_host(tmp_path: Path, live: bool) -> None:
    """Rank 1's host has a Unix time 3 s ahead of rank 0's, and a monotonic clock 40 s ahead."""
    job = Job(tmp_path)
    ahead = {"clock": "other", "time_ns": START_NS + 3 * SECOND_NS, "monotonic_ns": 45 * SECOND_NS}
    write(tmp_path, 0, _header(0))
    write(tmp_path, 1, dataclasses.replace(_header(1), **ahead), _step_at(1, 0, 4 * SECOND_NS))
    if live:
        job.update()
        assert job.apart == [1]
        assert job.ranks[1].steps[-1].time_ns == START_NS + 4 * SECOND_NS
    probe = {"offset_ns": 40 * SECOND_NS, "error_ns": 5}
    write(tmp_path, 0, ClockOffset(rank=0, peer=1, at_ns=6 * SECOND_NS, **probe))
    for number in range(1, 3):
        write(tmp_path, 0, _step_at(0, number, number * SECOND_NS))
        write(tmp_path, 1, _step_at(1, number, (3 + number) * SECOND_NS))
        write(tmp_path, 1, _link(1, 0, (45 + number) * SECOND_NS))
        if live:
            job.update()
    job.update()
    assert job.apart == []
    told = [[step.time_ns - START_NS for step in rank.steps] for rank in job.ranks.values()]
    assert told == [
        [SECOND_NS, 2 * SECOND_NS],
        [(4 if live else 1) * SECOND_NS, SECOND_NS, 2 * SECOND_NS],
    ]
    reports = [time_ns - START_NS for time_ns, _ in job.links[1, 0, 0].reports]
    assert reports == [SECOND_NS, 2 * SECOND_NS]


def test_files_that_end_within_a_line_are_known(tmp_path: Path) -> None:
    path = file_of(tmp_path, 0)
    write(tmp_path, 0, _header(0))
    job = Job(tmp_path)
    job.update()
    assert job.unfinished == []
    with path.open("a") as file:
        file.write("{cut")
    job.update()
    assert job.unfinished == [path]


def test_all_steps_are_in_the_history(tmp_path: Path) -> None:
    second = dataclasses.replace(_step(0, 0), optimizer=1, wall_ns=7, exposed_ns=1_000_000)
    write(tmp_path, 0, _header(0), _step(0, 0), second, _step(0, 1))
    job = Job(tmp_path)
    job.update()
    entries = job.ranks[0].history.entries
    assert [(each.count, each.wall_ns, each.exposed_ns) for each in entries] == [
        (1, 20_000_000, 6_000_000),
        (1, 20_000_000, 5_000_000),
    ]


def test_a_rank_is_silent_after_five_seconds_and_ends_with_its_last_record(tmp_path: Path) -> None:
    write(tmp_path, 0, _header(0), _opened(0))
    write(tmp_path, 1, _header(1))
    job = Job(tmp_path)
    job.update()
    ranks = job.ranks
    assert ranks[0].state(START_NS + 5 * SECOND_NS) is State.RUNNING
    assert ranks[0].state(START_NS + 5 * SECOND_NS + 1) is State.SILENT
    run = RunSummary(rank=0, steps=1, wall_ns=1, exposed_ns=0, reduced_bytes=0)
    write(tmp_path, 0, run)
    write(tmp_path, 1, RunSummary(rank=1, steps=1, wall_ns=1, exposed_ns=0, reduced_bytes=0))
    job.update()
    assert not ranks[0].ended, "its engine still runs"
    assert ranks[1].ended, "it has no engine"
    write(tmp_path, 0, Counters(rank=0, time_ns=START_NS, values={}))
    job.update()
    assert ranks[0].state(START_NS) is State.ENDED
    write(tmp_path, 0, _opened(0))
    job.update()
    assert ranks[0].state(START_NS) is State.RUNNING, "it has opened a group again"


def test_sums_of_pipelines_decisions_and_groups_keep_growing(tmp_path: Path) -> None:
    row = Operation(1, 0, -1, 400, 1, 7, -1, 0, 0, 1, 1, 1000, 1100, 2000, 500, 0)
    step = PipelineStep(
        rank=0,
        step=0,
        time_ns=START_NS,
        wall_ns=100,
        computing_ns=70,
        waiting_ns=20,
        plan="1f1b",
        policy="ready",
    )
    chosen = Decision(rank=0, time_ns=1, subject="plan", choice="ring", reason="measured")
    write(tmp_path, 0, _header(0), _opened(0, 7, (0, 2)), _step(0, 0), step, step, chosen, chosen)
    write(tmp_path, 0, Operations(rank=0, lost=0, rows=(row,)))
    write(tmp_path, 0, Operations(rank=0, lost=0, rows=(row._replace(group=8),)))
    job = Job(tmp_path)
    job.update()
    rank = job.ranks[0]
    assert rank.wall_ns == 20_000_000
    assert (rank.pipeline_count, rank.pipeline_wall_ns) == (2, 200)
    assert (rank.pipeline_computing_ns, rank.pipeline_waiting_ns) == (140, 40)
    assert job.decision_counts == {(0, "plan"): 2}
    assert job.begun_ns == START_NS
    assert rank.totals["all_reduce"].count == 2
    assert {key: totals.bytes for key, totals in rank.group_totals.items()} == {
        ((0, 2), "all_reduce"): 400,
        ((), "all_reduce"): 400,
    }


def test_disturbed_directions_come_first(tmp_path: Path) -> None:
    write(
        tmp_path,
        0,
        _header(0),
        _link(0, 1, 7 * SECOND_NS, outward="link 0>1 is well", inward="inward"),
    )
    write(tmp_path, 1, _header(1), _verdict(1, 0, 1, 1, "slow"), _verdict(1, 2, 1, 1, "cut"))
    write(
        tmp_path,
        2,
        _header(2),
        _link(2, 1, 7 * SECOND_NS),
        _step(2, 6 * SECOND_NS),
    )
    job = Job(tmp_path)
    job.update()
    found = job.directions()
    assert [(each.source, each.target, each.condition) for each in found] == [
        (1, 2, Condition.CUT),
        (2, 1, Condition.CUT),
        (0, 1, Condition.SLOW),
        (1, 0, None),
    ]
    assert [each.bits_per_second for each in found] == [0, 0, 200e6, 100e6], "2's data have stopped"
    assert [each.sentence for each in found[2:]] == ["link 0>1 is slow", "inward"]
    assert [each.over_ns for each in found[2:]] == [30_000_000, 0]


def test_a_directory_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        Job.recorded(tmp_path)
    expected = f"{str(tmp_path)!r} has no telemetry: no file rank-*.jsonl with a record"
    assert str(refused.value) == expected
    header = encode(_header(0)).replace(f'"version":{SCHEMA_VERSION}', '"version":1')
    file_of(tmp_path, 0).write_text(f"{header}\n")
    with pytest.raises(UsageError) as refused:
        Job.recorded(tmp_path)
    assert str(refused.value) == (
        f"{file_of(tmp_path, 0)}:1: the records have version 1 of the schema, and this slackline "
        f"reads version {SCHEMA_VERSION}; the rest of the file is left out"
    )
    write(tmp_path, 1, _header(1))
    assert list(Job.recorded(tmp_path).ranks) == [1]
    file_of(tmp_path, 2).mkdir()
    with pytest.raises(UsageError) as refused:
        Job.recorded(tmp_path)
    assert str(refused.value) == f"{str(file_of(tmp_path, 2))!r} cannot be read: Is a directory"


def test_records_can_be_passed_without_a_file_and_findings_wait_for_their_time(
    tmp_path: Path,
) -> None:
    job = Job(tmp_path)
    for record in (_header(0), _header(1), _verdict(0, 0, 1, 10 * SECOND_NS, "slow")):
        job.take(record)
    job.settle(START_NS + 10 * SECOND_NS + SECOND_NS // 2)
    assert list(job.findings) == []
    (episode,) = job.open_episodes
    assert (episode.began_ns, episode.until_ns) == (START_NS + 10 * SECOND_NS, None)
    job.finish()
    assert [finding.sentence for finding in job.findings] == ["link 0>1 is slow"]
    job.take(_verdict(0, 0, 1, 12 * SECOND_NS, "back"))
    job.settle(START_NS + 12 * SECOND_NS)
    assert job.open_episodes == []


def test_a_host_whose_clock_is_ahead_does_not_delay_a_finding(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.take(_verdict(0, 0, 1, 1000 * SECOND_NS, "slow"))
    for second in (10, 11):
        job.settle(START_NS + second * SECOND_NS)
    assert [(each.time_ns - START_NS, each.sentence) for each in job.findings] == [
        (11 * SECOND_NS, "link 0>1 is slow")
    ]


def test_the_rails_of_a_rank_without_totals_follow_from_its_operations(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.take(_header(0))
    job.take(_link(0, 1, 7 * SECOND_NS))
    assert job.ranks[0].rails == ()
    used = (1 << 31) | 1
    row = Operation(1, 0, -1, 400, 1, 1, -1, 0, 0, 1, used, 1000, 1100, 6 * SECOND_NS, 500, 1)
    job.take(Operations(rank=0, lost=0, rows=(row,)))
    assert job.ranks[0].rails == ("shm", "tcp")
    assert job.ranks[0].failed_ns == START_NS + SECOND_NS
    values = {"udp_frames_sent": 3, "tcp_frames_sent": 0}
    job.take(Counters(rank=0, time_ns=START_NS, values=values))
    assert job.ranks[0].rails == ("udp",)


def test_a_long_file_is_not_read_into_memory_before_its_first_record_is_taken(
    tmp_path: Path,
) -> None:
    path = file_of(tmp_path, 0)
    write(tmp_path, 0, _header(0), *(_step(0, number) for number in range(3000)))
    with path.open("a") as file:
        file.write("{cut\n")
    job = Job(tmp_path)
    records = job.added()
    next(records)
    assert not job.problems  # the last line has not been read
    assert sum(1 for _ in records) == 3000
    assert len(job.problems) == 1

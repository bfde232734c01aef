"""Tests of the content of each panel, from records with known figures."""

import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from job_records import (
    cell,
    ended,
    job_of,
    nic_of_rank_2,
    operations,
    pipeline_step,
    report,
    step,
    unix,
    verdict,
)
from made_records import MS_NS, SECOND_NS, START_NS, header, write

pytest.importorskip("aiohttp", reason="the page needs slackline-torch[dashboard]")

from slackline.causes import Watch
from slackline.history import Job
from slackline.records import (
    ClockOffset,
    DeviceReport,
    GroupOpened,
    Promise,
    RunSummary,
    process_names,
)
from slackline.views.page._faults import faults
from slackline.views.page._links import link_history, links
from slackline.views.page._messages import messages
from slackline.views.page._pipeline import pipeline
from slackline.views.page._promises import promises
from slackline.views.page._steps import StepTimes, overview, states_of
from slackline.views.page._timeline import timeline

START_S = START_NS / 1e9
SLOW = "link 0>1 is slow since 3.0 s: 30 ms over its usual 200 us"
CUT = "link 1-2 is cut since 4.0 s"


def test_the_overview_has_the_pace_of_each_rank(tmp_path: Path) -> None:
    opened = GroupOpened(rank=0, time_ns=START_NS, size=2, epoch=1, members=(0, 1))
    first = [opened, step(0, 0), step(0, 1), operations(0, (0, 10, 5)), ended(0)]
    second = [replace(opened, rank=1), step(1, 0, wall_ms=200, exposed_ms=20)]
    job = job_of(tmp_path, rank0=first, rank1=second)
    shown = overview(Watch(job), START_NS + 61 * SECOND_NS)
    assert shown["world"] == 2
    assert shown["state"] == "silent"
    assert [shown["seen_s"]] == unix(60)
    assert shown["summary"] == [
        ["job", "2 ranks on 2 hosts, 60 s, 1 of 2 ended"],
        ["steps", "1 to 2, 150 ms each at the median (6.67 a second)"],
        ["exposed", "22.5 ms of a step wait for communication (17.5%)"],
        ["operations", "1 all_reduce (4 KiB)"],
        ["slow", "no cause of slow steps"],
    ]
    assert shown["ranks"][0] == {
        "rank": 0,
        "host": "host0",
        "process": 100,
        "state": "ended",
        "restarts": 0,
        "steps": 2,
        "step_ms": 100,
        "waits_for": "communication",
        "exposed_ms": 25,
        "share": 0.25,
        "operations": 1,
        "failed": 0,
        "lost": 0,
        "device": "",
    }
    assert [each["state"] for each in shown["ranks"]] == ["ended", "silent"]
    assert overview(Watch(job), START_NS + 3 * SECOND_NS)["ranks"][1]["state"] == "running"
    write(tmp_path, 1, ended(1))
    job.update()
    assert overview(Watch(job), START_NS + 61 * SECOND_NS)["state"] == "ended"


def test_a_rank_with_a_device_has_its_cycles(tmp_path: Path) -> None:
    counted = {"cycles": 100, "busy": 20, "no_credit": 30}
    devices = [DeviceReport.of(0, START_NS, "circuit", counted), DeviceReport.of(1, 0, "twin", {})]
    job = job_of(tmp_path, rank0=[devices[0]], rank1=[devices[1]])
    rows = overview(Watch(job), START_NS)["ranks"]
    assert [row["device"] for row in rows] == ["circuit: busy 20%, no_credit 30%", "twin"]


def test_a_job_whose_processes_were_killed_has_ended(tmp_path: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    killed.kill()
    killed.communicate()
    names = process_names()
    write(tmp_path, 0, header(0, process=os.getpid(), processes=names), step(0, 0))
    write(tmp_path, 1, header(1, process=killed.pid, processes=names), step(1, 0))
    write(tmp_path, 2, header(2, process=killed.pid, processes="of a container"), step(2, 0))
    job = Job(tmp_path)
    job.update()
    just, soon, late = (START_NS + at_s * SECOND_NS for at_s in (1, 2, 6))
    assert states_of(Watch(job), just) == ("running",) * 4
    assert states_of(Watch(job), soon) == ("running", "gone", "running", "running")
    assert states_of(Watch(job), late) == ("silent", "gone", "silent", "silent")
    for rank in (0, 2):
        done = RunSummary(rank=rank, steps=1, wall_ns=1, exposed_ns=0, reduced_bytes=0)
        write(tmp_path, rank, done)
    job.update()
    assert states_of(Watch(job), late) == ("ended", "gone", "ended", "gone")
    write(tmp_path, 1, header(1, process=os.getpid(), processes=names))
    job.update()
    assert states_of(Watch(job), soon)[-1] == "running", "the rank has been started again"


def test_a_job_whose_files_were_removed_has_ended(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    job = job_of(tmp_path / "kept", rank0=[step(0, 0)])
    shutil.rmtree(tmp_path / "kept")
    assert states_of(Watch(job), START_NS + SECOND_NS) == ("running", "removed")


def test_the_steps_of_all_ranks_are_one_series(tmp_path: Path) -> None:
    job = job_of(
        tmp_path,
        rank0=[step(0, 0), step(0, 1, wall_ms=200, exposed_ms=100)],
        rank1=[step(1, 0, wall_ms=300, exposed_ms=75)],
    )
    assert StepTimes().panel(job) == {
        "pipeline": False,
        "width": 1,
        "time_s": unix(0.1, 0.2),
        "median_ms": [200, 150],
        "low_ms": [150, 125],
        "high_ms": [250, 175],
        "longest_ms": [300, 200],
        "share": [0.25, pytest.approx(125 / 300)],
    }


def test_waits_after_the_end_of_a_step_do_not_make_its_share_more_than_the_whole(
    tmp_path: Path,
) -> None:
    job = job_of(tmp_path, rank0=[step(0, 0, exposed_ms=130)])
    assert StepTimes().panel(job)["share"] == [1.0]
    shown = overview(Watch(job), START_NS + SECOND_NS)
    assert [row["share"] for row in shown["ranks"]] == [1.0]


def test_rare_long_steps_leave_the_percentiles_as_they_are(tmp_path: Path) -> None:
    """One step in eight takes ten times longer: only the longest step changes."""
    steps = [step(0, n, wall_ms=1000 if n % 8 == 5 else 100 + n % 2) for n in range(3000)]
    for count, width in ((200, 1), (3000, 8)):
        (tmp_path / str(count)).mkdir()
        shown = StepTimes().panel(job_of(tmp_path / str(count), rank0=steps[:count]))
        assert shown["width"] == width
        assert set(shown["high_ms"][8:]) == {101}
        assert set(shown["low_ms"][8:]) == {100}
        assert max(shown["longest_ms"]) == 1000
    assert set(shown["longest_ms"]) == {1000}


def test_faults_have_the_times_for_which_they_lasted(tmp_path: Path) -> None:
    back = "link 0>1 is back at 9.0 s: 0.2 ms one way, after 6.0 s"
    job = job_of(
        tmp_path,
        rank0=[verdict(0, 0, 1, 3, "slow", SLOW), verdict(0, 0, 1, 9, "back", back)],
        rank1=[verdict(1, 1, 2, 4, "cut", CUT)],
        rank2=[verdict(2, 2, 1, 4, "cut", CUT)],
    )
    shown = faults(Watch(job))["faults"]
    assert [each["text"] for each in shown] == [CUT, SLOW]
    assert [each["since_s"] for each in shown] == unix(4, 3)
    assert shown[0]["until_s"] is None
    assert [shown[1]["until_s"]] == unix(9)


def test_the_fault_of_a_cause_lasts_as_long_as_the_cause(tmp_path: Path) -> None:
    job_of(tmp_path, **nic_of_rank_2())
    watch = Watch(Job(tmp_path))
    watch.update(START_NS + 22 * SECOND_NS)
    (nic,) = [each for each in faults(watch)["faults"] if each["text"].startswith("NIC 0 of host")]
    assert [nic["since_s"]] == unix(10)
    assert nic["until_s"] is None


def test_a_run_of_any_length_is_shown_from_its_beginning(tmp_path: Path) -> None:
    job = job_of(tmp_path, rank0=[step(0, number) for number in range(3000)])
    shown = StepTimes().panel(job)
    assert shown["width"] == 8
    assert len(shown["time_s"]) == 375
    assert [shown["time_s"][0], shown["time_s"][-1]] == unix(0.8, 300)
    assert set(shown["median_ms"]) == {100}


def test_step_times_that_are_shown_again_and_again_are_those_of_one_look(tmp_path: Path) -> None:
    """Ranks go on at different paces, one begins late, and the history is merged on the way."""
    dice = random.Random(5)
    job = job_of(tmp_path, rank0=[step(0, 0)])
    shown = StepTimes()
    taken = dict.fromkeys(range(3), 0)
    for look in range(60):
        for rank in taken if look > 10 else (0, 1):
            count = dice.randrange(30)
            for number in range(taken[rank], taken[rank] + count):
                wall_ms = dice.randrange(50, 200)
                job.take(step(rank, number, wall_ms=wall_ms, exposed_ms=dice.randrange(50)))
            taken[rank] += count
        assert shown.panel(job) == StepTimes().panel(job), look
    assert shown.panel(job)["width"] > 1


def test_a_cell_has_the_sender_s_rate_and_the_worst_condition(tmp_path: Path) -> None:
    rails = [report(0, 1, 5), report(0, 1, 5, rail=1, packets=200, resent=10)]
    job = job_of(
        tmp_path,
        rank0=[*rails, verdict(0, 0, 1, 3, "slow", SLOW)],
        rank1=[verdict(1, 1, 2, 4, "cut", CUT)],
        rank2=[],
    )
    shown = links(job)
    assert shown["ranks"] == [0, 1, 2]
    assert cell(shown, 0, 1) == {
        "source": 0,
        "target": 1,
        "rails": 2,
        "condition": "slow",
        "affected": 1,
        "sentence": SLOW,
        "idle": False,
        "rate_bps": 200e6,
        "round_trip_ms": 0.4,
        "loss": 0.05,
    }
    # Rank 1 has no report: the rate of its direction is that which rank 0 has received.
    assert cell(shown, 1, 0)["rate_bps"] == 100e6
    assert cell(shown, 1, 0)["condition"] == "well"
    assert cell(shown, 1, 0)["sentence"] == "link 1>0 is well: 200 us one way as usual"
    for direction in ((1, 2), (2, 1)):
        assert cell(shown, *direction)["condition"] == "cut"
        assert cell(shown, *direction)["sentence"] == CUT
        assert cell(shown, *direction)["idle"]
    back = "link 0>1 is back at 9.0 s: 200 us one way, after 6 s"
    write(tmp_path, 0, verdict(0, 0, 1, 9, "back", back))
    job.update()
    assert cell(links(job), 0, 1)["condition"] == "well"


def test_a_link_without_recent_reports_is_idle(tmp_path: Path) -> None:
    job = job_of(tmp_path, rank0=[report(0, 1, 5), report(0, 2, 9)])
    shown = links(job)
    assert cell(shown, 0, 1)["idle"]
    assert cell(shown, 0, 1)["rate_bps"] == 0
    assert not cell(shown, 0, 2)["idle"]


def test_a_large_matrix_keeps_the_ranks_of_disturbed_links(tmp_path: Path) -> None:
    reports = [report(0, peer, 5) for peer in range(1, 41)]
    job = job_of(tmp_path, rank0=[*reports, verdict(0, 40, 0, 3, "slow", "link 40>0 is slow")])
    assert links(job)["ranks"] == [*range(31), 40]


def test_a_link_s_history_has_a_column_for_each_rail(tmp_path: Path) -> None:
    first = [report(0, 1, 5), report(0, 1, 6), report(0, 1, 6, rail=1, packets=100, resent=1)]
    job = job_of(tmp_path, rank0=[*first, verdict(0, 0, 1, 3, "slow", SLOW)], rank1=[])
    assert link_history(job, 0, 1) == {
        "source": 0,
        "target": 1,
        "time_s": unix(5, 6),
        "rails": [
            {
                "rail": 0,
                "kind": "tcp",
                "rate_bps": [100e6, 100e6],
                "round_trip_ms": [0.4, 0.4],
                "loss": [None, None],
            },
            {
                "rail": 1,
                "kind": "udp",
                "rate_bps": [None, 100e6],
                "round_trip_ms": [None, 0.4],
                "loss": [None, 0.01],
            },
        ],
        "sentences": [{"text": SLOW, "since_s": START_S + 3, "until_s": None}],
    }
    assert link_history(job, 7, 8)["rails"] == []


def test_the_timeline_has_operations_in_lanes_and_waits_without_overlaps(tmp_path: Path) -> None:
    rows = [(210, 250, 0), (240, 280, 30), (260, 290, 20), (590, 610, 0)]
    steps = [step(0, number) for number in range(6)]
    job = job_of(tmp_path, rank0=[*steps, operations(0, *rows)])
    shown = timeline(job)
    # Operations are known until 610 ms; the three latest steps until then are those from 300 ms on.
    assert [shown["begin_s"]] == unix(0.3)
    assert shown["length_ms"] == 300
    (rank,) = shown["ranks"]
    assert rank["steps"] == [[0, 100, 3], [100, 200, 4], [200, 300, 5]]
    assert rank["operations"] == [[0, 290, 300, "all_reduce", 4096, "direct", False]]
    assert rank["waiting"] == 0
    (tmp_path / "early").mkdir()
    job = job_of(tmp_path / "early", rank0=[*steps[:3], operations(0, *rows)])
    (rank,) = timeline(job)["ranks"]
    assert [each[:3] for each in rank["operations"]] == [
        [0, 210, 250],
        [1, 240, 280],
        [0, 260, 290],
    ]
    assert not shown["plain"]
    assert rank["waits"] == [[250, 290]]
    assert rank["waiting"] == pytest.approx(40 / 300)


def test_the_timeline_says_where_waits_may_be_missing(tmp_path: Path) -> None:
    job = job_of(tmp_path, rank0=[replace(step(0, 0), plain=True)], rank1=[])
    assert timeline(job)["plain"]


def test_without_steps_the_timeline_is_the_second_before_the_latest_operation(
    tmp_path: Path,
) -> None:
    job = job_of(tmp_path, rank0=[operations(0, (100, 200, 0), (1500, 2000, 250))])
    shown = timeline(job)
    assert [shown["begin_s"]] == unix(1)
    assert shown["length_ms"] == 1000
    (rank,) = shown["ranks"]
    assert [each[1:3] for each in rank["operations"]] == [[500, 1000]]
    assert rank["waits"] == [[750, 1000]]
    assert rank["waiting"] == 0.25


def test_times_of_another_host_are_brought_to_one_clock(tmp_path: Path) -> None:
    # The clock of rank 1 is 40 ms ahead; no probe compares that of rank 2.
    probe = ClockOffset(rank=0, peer=1, at_ns=0, offset_ns=40 * MS_NS, error_ns=0)
    write(tmp_path, 0, header(0, clock="a"), probe, operations(0, (1000, 1500, 0)))
    write(tmp_path, 1, header(1, clock="b"), operations(1, (1040, 1540, 0)))
    write(tmp_path, 2, header(2, clock="c"), operations(2, (1040, 1500, 0)))
    job = Job(tmp_path)
    job.update()
    shown = timeline(job)
    assert shown["apart"] == [2]
    begins = [rank["operations"][0][1] for rank in shown["ranks"]]
    assert begins == pytest.approx([500, 500, 540])


def test_a_pipeline_s_step_has_its_instructions_and_bubbles(tmp_path: Path) -> None:
    job = job_of(
        tmp_path,
        rank0=[pipeline_step(0, 0), pipeline_step(0, 1, ("0F0", 0, 30), ("0BW0", 70, 100))],
        rank1=[pipeline_step(1, 1, ("1F0", 40, 60), ("other", 60, 70))],
    )
    assert pipeline(job) == {
        "step": 1,
        "plan": "1f1b",
        "policy": "ready",
        "change": "",
        "begin_s": START_S + 0.1,
        "length_ms": 100,
        "ranks": [
            {
                "rank": 0,
                "instructions": [["F", 0, 0, 0, 30], ["BW", 0, 0, 70, 100]],
                "bubbles": [[30, 70]],
                "waiting": 0.4,
                "left_out": 0,
            },
            {
                "rank": 1,
                "instructions": [["F", 1, 0, 40, 60], ["other", None, None, 60, 70]],
                "bubbles": [[0, 40], [70, 100]],
                "waiting": 0.7,
                "left_out": 0,
            },
        ],
    }
    assert StepTimes().panel(job)["pipeline"]
    assert StepTimes().panel(job)["share"] == [pytest.approx(0.85), pytest.approx(0.7)]


def test_promised_step_times_are_beside_the_measured_ones(tmp_path: Path) -> None:
    def promise(rank: int, at_ms: int, choice: str, wall_ms: int) -> Promise:
        return Promise(
            rank=rank,
            time_ns=START_NS + at_ms * MS_NS,
            source="groups",
            choice=choice,
            wall_ns=wall_ms * MS_NS,
        )

    steps = [step(0, number) for number in range(10)]
    first, second = promise(0, 200, "groups of 4 KiB", 80), promise(1, 950, "one each", 50)
    job = job_of(tmp_path, rank0=[first, *steps], rank1=[second])
    shown = promises(job)
    assert shown["left_out"] == 0
    times = [each.pop("time_s") for each in shown["promises"]]
    assert times == unix(0.95, 0.2)
    assert shown["promises"] == [
        {
            "rank": 1,
            "source": "groups",
            "choice": "one each",
            "promised_ms": 50,
            "measured_ms": None,
            "steps": 0,
            "ratio": None,
        },
        {
            "rank": 0,
            "source": "groups",
            "choice": "groups of 4 KiB",
            "promised_ms": 80,
            "measured_ms": 100,
            "steps": 8,
            "ratio": 1.25,
        },
    ]


def test_the_panels_of_a_job_without_records_are_empty(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.update()
    assert overview(Watch(job), START_NS)["ranks"] == []
    assert overview(Watch(job), START_NS)["state"] == "running"
    assert faults(Watch(job)) == {"faults": []}
    assert StepTimes().panel(job)["time_s"] == []
    assert links(job)["cells"] == []
    assert timeline(job)["ranks"] == []
    assert pipeline(job)["ranks"] == []
    assert promises(job) == {"promises": [], "left_out": 0}
    assert messages(Watch(job)) == {"causes": [], "messages": []}

"""Tests of the panels of causes, findings, decisions and problems."""

import time
from pathlib import Path

import pytest
from job_records import cell, job_of, nic_of_rank_2, unix, verdict
from made_records import SECOND_NS, START_NS

pytest.importorskip("aiohttp", reason="the page needs slackline-torch[dashboard]")

from slackline.causes import Watch
from slackline.history import Job
from slackline.records import Decision, Gap, GroupOpened, LinkVerdict, Record, file_of
from slackline.views.page._links import links
from slackline.views.page._messages import messages, problems

SLOW = "link 0>1 is slow since 3.0 s: 30 ms over its usual 200 us"
NIC = (
    "NIC 0 of host host2: all 3 links in use over it are silent, and links between other hosts "
    "are not"
)


def watch_of(directory: Path, **records: list[Record]) -> Watch:
    """Write the records of the ranks rank0, rank1, ... after their headers, and diagnose them."""
    job_of(directory, **records)
    watch = Watch(Job(directory))
    watch.update(time.time_ns())
    return watch


def test_messages_are_newest_first_and_common_decisions_are_one(tmp_path: Path) -> None:
    def decided(rank: int, at_s: int, choice: str) -> Decision:
        time_ns = START_NS + at_s * SECOND_NS
        return Decision(
            rank=rank, time_ns=time_ns, subject="plan", choice=choice, reason="measured"
        )

    opened = GroupOpened(rank=0, time_ns=START_NS, size=3, epoch=1, members=(0, 1, 2))
    watch = watch_of(
        tmp_path,
        rank0=[opened, decided(0, 1, "ring"), verdict(0, 0, 1, 3, "slow", SLOW)],
        rank1=[decided(1, 2, "ring"), decided(1, 8, "ring")],
    )
    shown = messages(watch)["messages"]
    assert [each["text"] for each in shown] == [
        "rank 1, plan: ring (measured)",
        SLOW,
        "ranks 0, 1, plan: ring (measured)",
    ]
    assert [each["kind"] for each in shown] == ["decision", "finding", "decision"]
    assert [each["time_s"] for each in shown] == unix(8, 4, 1)


def test_a_cause_takes_the_place_of_the_findings_that_it_explains(tmp_path: Path) -> None:
    watch = watch_of(tmp_path, **nic_of_rank_2())
    shown = messages(watch)
    assert shown["messages"] == []
    (cause,) = shown["causes"]
    assert (cause["text"], cause["kind"], cause["over_s"]) == (NIC, "nic", None)
    assert [cause["time_s"]] == unix(10)
    silent = ["0>2", "1>2", "2>3"]  # one direction of each broken rail
    assert sorted(each["text"] for each in cause["findings"]) == [
        f"link {each} silent" for each in silent
    ]
    assert [each["time_s"] for each in cause["findings"]] == unix(*[10.05] * 3)
    assert cell(links(watch.job), 0, 2)["condition"] == "silent"


def test_a_cause_is_kept_with_its_times_after_it_is_over(tmp_path: Path) -> None:
    watch = watch_of(tmp_path, **nic_of_rank_2(back_s=15))
    shown = messages(watch)
    assert shown["messages"] == []
    (cause,) = shown["causes"]
    assert cause["text"] == NIC
    assert [cause["time_s"], cause["over_s"]] == unix(10, 15)
    texts = [each["text"] for each in cause["findings"]]
    assert [each.split()[-1] for each in texts] == ["back"] * 3 + ["silent"] * 3


def test_a_slow_link_alone_is_a_finding_and_no_cause(tmp_path: Path) -> None:
    records = nic_of_rank_2()
    for name, given in records.items():
        records[name] = [each for each in given if not isinstance(each, LinkVerdict)]
    records["rank0"].append(verdict(0, 0, 1, 20, "slow", SLOW))
    shown = messages(watch_of(tmp_path, **records))
    assert [each["text"] for each in shown["messages"]] == [SLOW]
    assert shown["causes"] == []


def test_missing_and_cut_records_are_problems(tmp_path: Path) -> None:
    gap = Gap(rank=0, time_ns=START_NS, lost=7, reason="No space left on device")
    job = job_of(tmp_path, rank0=[gap])
    with file_of(tmp_path, 0).open("a") as file:
        file.write('{"record":"st')
    job.update()
    assert problems(job)["problems"] == [
        "rank 0: 7 records missing: No space left on device",
        f"{file_of(tmp_path, 0)}: the last line is cut; it may still be written",
    ]

"""Tests of the preparation of a job's hosts and faults, as far as no network is needed."""

import os
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import pytest

from slackline.cli import main
from slackline.cli._job._launch import Job
from slackline.cli._job._stage import lab_options, open_stage
from slackline.faults import parse_all
from slackline.lab import LabOptions


@pytest.mark.parametrize(
    ("faults", "settings"),
    [
        (
            "link 0-1 delay 2ms; rank 1 slow 2x; nic 0.7 down from 60s",
            {"SLACKLINE_FAULTS": "link 0-1 delay 2ms; nic 0.7 down from 1min"},
        ),
        ("rank 1 slow 2x", {"SLACKLINE_FAULTS": ""}),
        ("", {}),
    ],
)
def test_without_a_lab_the_engine_is_told_the_faults_of_links(
    faults: str, settings: dict[str, str]
) -> None:
    with open_stage(None, parse_all(faults), ranks=2) as stage:
        assert stage.place.agent == stage.place.program == ()
        assert "--local-addr=127.0.0.1" in stage.place.rendezvous
        assert stage.settings == settings
        assert (stage.injection is not None) == ("rank" in faults)


def test_a_fault_that_was_left_out_is_reported_once() -> None:
    with open_stage(None, parse_all("rank 0 stop from 1ms for 1ns"), ranks=1) as stage:
        injection = stage.injection
        assert injection is not None
        injection.start()
        assert injection.wait(timedelta(seconds=20))
        (sentence,) = stage.left_out()
        assert sentence.startswith("the fault 'rank 0 stop from 1ms for 1ns' is left out: ")
        assert stage.left_out() == []


def test_a_lab_has_a_host_for_each_rank() -> None:
    def options(**given: Any) -> LabOptions | None:
        empty: dict[str, Any] = dict.fromkeys(("ranks", "hosts", "nics", "rate", "switch"))
        return lab_options(lab=True, **(empty | given))

    assert options() == LabOptions(hosts=4)
    assert options(ranks=3) == LabOptions(hosts=3)
    assert options(hosts="2", nics=2, rate="1Gbit") == LabOptions(hosts=2, nics=2, rate=10**9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--hosts", "2"),
            "--hosts 2 is a number of hosts, which only a lab has: add --lab, or list host names, "
            "as --hosts a,b,c",
        ),
        (("--lab", "--hosts", "a,b"), "--hosts of a lab is a number of hosts, not 'a,b'"),
        (
            ("--port", "29500"),
            "--port 29500 is for a job of several machines: add --hosts a,b",
        ),
        (
            ("--lab", "--hosts", "2", "--port", "29500"),
            "--port 29500 is for a job of several machines: add --hosts a,b",
        ),
        (("--rate", "1Gbit"), "--rate is an option of a lab: add --lab"),
        (
            ("--lab", "--hosts", "2", "--ranks", "3"),
            "a lab has one rank on each host: --ranks 3 is not --hosts 2",
        ),
        (
            ("--lab", "--hosts", "2", "--fault", "link 0-2 down"),
            "there is no host 2 for 'link 0-2 down': there are 2",
        ),
        (
            ("--ranks", "2", "--fault", "rank 2 kill"),
            "there is no rank 2 for 'rank 2 kill': there are 2",
        ),
        *(
            (
                ("--fault-wait", "1s", *faults),
                "--fault-wait 1s: no fault of a rank or of a lab has a time",
            )
            for faults in (
                (),
                ("--fault", "rank 1 slow 2x"),
                ("--fault", "link 0-1 delay 2ms from 1s"),
                ("--lab", "--fault", "link 0-1 delay 2ms"),
            )
        ),
        (
            ("--fault-wait", "soon", "--fault", "rank 1 kill from 1s"),
            "--fault-wait soon: a duration must be a number and one of ns, us, ms, s, min, h, not "
            "'soon'",
        ),
        (
            ("--lab", "--switch", "kernel", "--fault", "link 0-1 delay 1ms"),
            "the kernel switch cannot apply 'link 0-1 delay 1ms': it can only take NICs down and "
            "set their rates; choose the user-space switch (switch 'user')",
        ),
    ],
)
def test_a_mistake_is_told_before_anything_starts(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *options, __file__]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(re.escape(f"slackline: {message}\n"), err)


@dataclass
class Running:
    """A job of four ranks, some of whose processes are running."""

    ranks: range = range(4)
    count: int = 4

    def processes(self) -> dict[int, int]:
        return dict.fromkeys(range(self.count), os.getpid())


S = 1_000_000_000


def test_the_faults_clock_starts_when_all_ranks_have_opened_a_group() -> None:
    with open_stage(None, parse_all("rank 1 slow 2x from 1h"), ranks=4) as stage:
        job, injection = cast(Job, Running()), stage.injection
        assert injection is not None
        assert stage.watch(job, [], 0) == ""
        assert stage.watch(job, [0, 1, 3], 20 * S) == ""
        assert not injection.started
        assert stage.unused().startswith("the job ended before its ranks had opened a group")
        assert stage.watch(job, [0, 1, 2, 3], 21 * S) == ""
        assert injection.started
        assert stage.watch(job, [0, 1, 2, 3], 99 * S) == ""
        assert stage.unused() == ""


def test_without_groups_the_faults_clock_starts_after_the_processes_and_says_so() -> None:
    with open_stage(None, parse_all("rank 1 slow 2x from 1h"), ranks=4) as stage:
        starting, job = cast(Job, Running(count=3)), cast(Job, Running())
        assert stage.watch(starting, [], 0) == ""
        assert stage.watch(job, [2], 100 * S) == ""
        assert stage.watch(job, [2], 130 * S - 1) == ""
        assert stage.injection is not None
        assert not stage.injection.started
        assert stage.watch(job, [2], 130 * S) == (
            "the faults count from now: ranks 0, 1, 3 opened no group of slackline in the 30 s "
            "since the processes have started"
        )
        assert stage.injection.started
        assert stage.watch(job, [2], 131 * S) == ""


def test_the_wait_for_groups_may_be_shorter_or_longer() -> None:
    plan = parse_all("rank 1 slow 2x from 1h")
    for wait_ns, told in ((S // 4, "250 ms"), (90 * S, "90 s")):
        with open_stage(None, plan, ranks=4, no_group_ns=wait_ns) as stage:
            job = cast(Job, Running())
            assert stage.watch(job, [], 0) == ""
            assert stage.watch(job, [0, 1, 2], wait_ns - 1) == ""
            assert stage.watch(job, [0, 1, 2], wait_ns) == (
                f"the faults count from now: rank 3 opened no group of slackline in the {told} "
                "since the processes have started"
            )


def test_faults_without_a_time_need_no_clock() -> None:
    with open_stage(None, parse_all("rank 1 slow 2x"), ranks=4) as stage:
        assert stage.unused() == ""

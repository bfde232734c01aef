"""Tests of `slackline why` on recorded jobs: slow steps, the run in ten lines, running jobs."""

import json
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from made_records import header, write
from recorded_jobs import unpack
from rich.console import Console

from slackline.cli import main
from slackline.views.terminal import Report


def test_a_job_that_did_not_fail_is_told_what_made_it_slow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unpack("cable", tmp_path)
    assert main(["why", str(tmp_path)]) == 0
    told, _, run = capsys.readouterr().out.partition("\n\n")
    *_, cause, advice = told.splitlines()
    assert cause.startswith("Slow steps, since 0.0 s (named at ")
    assert ": NIC 0 of host 2: it loses 1.11% of its packets, since the start; " in cause
    assert advice == (
        "Look at the NIC, its cable and its switch port (ethtool, ethtool -S, ip -s link)."
    )
    assert main(["why", "--json", str(tmp_path)]) == 0
    facts = json.loads(capsys.readouterr().out)
    (named,) = facts["causes"]
    assert f": {named['sentence']}." in cause
    assert [f"{name:<11}{text}" for name, text in facts["run"].items()] == run.splitlines()
    assert facts["run"]["slow"] == "NIC 0 of host 2 (to the end)"


def test_a_healthy_job_has_no_slow_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unpack("even", tmp_path)
    assert main(["why", str(tmp_path)]) == 0
    assert "Slow" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["cable", "even"])
def test_the_run_is_summed_up_in_ten_lines_at_most(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    unpack(name, tmp_path)
    assert main(["why", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.partition("\n\n")[2].splitlines()
    assert 3 <= len(lines) <= 10
    assert lines[0].startswith("job        4 ranks on 4 hosts, ")
    report = Report(tmp_path, ranks=4, unix=lambda: 2**62)
    report.update()
    shown = StringIO()
    Console(file=shown, width=400).print(report.summary())
    assert all(line[11:] in shown.getvalue() for line in lines)


def test_a_job_that_runs_is_not_told_as_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, 0, replace(header(0), time_ns=time.time_ns()))
    write(tmp_path, 1, header(1))
    assert main(["why", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == [
        "The job runs, and no rank has reported a failure.",
        "No record of the last five seconds is of rank 1.",
        "Watch the job with slackline top.",
    ]


def test_three_commands_look_at_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out.split()
    assert {"top", "why", "trace"} <= set(shown)
    assert {"diagnose", "dashboard", "metrics"} & set(shown) == set()

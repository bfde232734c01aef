"""Tests of reports and their explanations on real ranks that die, hang and disagree."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rank_jobs import Jobs
from rank_marks import mark, wait_for_marks
from torch import distributed as dist

from slackline.causes.ending import Explanation, explain, gather
from slackline.errors import PeerError, SlacklineError, TimeoutError
from slackline.history import read_reports
from slackline.records.failures import report_file_of

_SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]


def _fails(error: type[SlacklineError]) -> None:
    with pytest.raises(error):
        dist.all_reduce(torch.ones(10))


def dies(rank: int, size: int) -> None:
    """Have rank 1 killed after an operation of all ranks, while the others wait in the next one."""
    dist.all_reduce(torch.ones(10))
    mark("reduced")
    if rank == 1:
        wait_for_marks("reduced", range(size))
        os.kill(os.getpid(), signal.SIGKILL)
    _fails(PeerError)


def loads(rank: int, size: int) -> None:
    """Have rank 1 load data until all ranks have reported that the others wait for it."""
    dist.all_reduce(torch.ones(10))
    if rank != 1:
        _fails(TimeoutError)
    directory = Path(os.environ["SLACKLINE_TELEMETRY"])
    while not all(report_file_of(directory, each).exists() for each in range(size)):
        time.sleep(0.01)


def _line(file: str, text: str) -> set[int]:
    """Return the numbers of the lines of a file that contain a text."""
    lines = Path(file).read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if text in line}


def test_a_killed_rank_is_named_by_the_reports_of_the_others(job: Jobs, tmp_path: Path) -> None:
    job(3, dies, environment={"SLACKLINE_TELEMETRY": str(tmp_path)}, dying=(1,))
    reports, problems = read_reports(tmp_path)
    assert (sorted(reports), problems) == ([0, 2], [])
    for report in reports.values():
        (failed,) = report.events[0].failed
        assert (failed.kind, failed.bytes) == ("all_reduce", 40)
        assert (failed.error, failed.error_peer, failed.members) == ("PeerError", 1, (0, 1, 2))
        assert report.script
        assert sorted(report.versions) == ["python", "slackline", "torch"]
    found = explain(gather(tmp_path))
    assert (found.kind, found.ranks, found.waiting) == ("killed", (1,), (0, 2))
    assert found.cause.startswith("Rank 1 is gone: it left no report, and its telemetry ends at ")
    assert re.match(r"Ranks 0 and 2 waited in all_reduce number \d+ \(40 B, ", found.wait)


def test_a_rank_that_never_calls_is_shown_at_its_line(job: Jobs, tmp_path: Path) -> None:
    environment = {"SLACKLINE_TELEMETRY": str(tmp_path), "SLACKLINE_TIMEOUT": "4s"}
    job(2, loads, environment=environment)
    reports, problems = read_reports(tmp_path)
    assert (sorted(reports), problems) == ([0, 1], [])
    assert [event.kind for event in reports[1].events] == ["asked"]
    (part,) = reports[0].events[0].failed[0].missing
    assert (part.rank, part.state) == (1, "silent")
    found = explain(gather(tmp_path))
    assert (found.kind, found.ranks, found.waiting) == ("late", (1,), (0,))
    place = re.search(rf"{re.escape(__file__)}:(\d+) in ", found.cause)
    assert place is not None
    waits = _line(__file__, "while not all(report") | _line(__file__, "time.sleep(0.01)")
    assert int(place[1]) in waits


_HEAD = """
import os, signal, sys, time
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
dist.init_process_group("slackline")
data = torch.ones(10)
dist.all_reduce(data)
dist.barrier()
"""


def _run(
    directory: Path, body: str, *options: str, ranks: int = 3, **variables: str
) -> tuple[int, str]:
    """Run a script on several ranks; return the exit code and the command's own output."""
    script = directory / "script.py"
    script.write_text(_HEAD + body)
    command = [*_SLACKLINE, "run", "--ranks", str(ranks), "--keep", "kept", *options, "script.py"]
    ended = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
    )
    return ended.returncode, ended.stderr


def _why(directory: Path) -> Explanation:
    """Return the explanation of the kept job, which the command must print too."""
    kept = directory / "kept"
    told = subprocess.run(
        [*_SLACKLINE, "why", str(kept)], capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    found = explain(gather(kept))
    assert told[:3] == list(found.sentences)
    return found


def _number(directory: Path, text: str) -> int:
    (number,) = _line(str(directory / "script.py"), text)
    return number


@pytest.mark.slow
def test_an_exception_in_one_script_is_named_first_and_by_slackline_run(tmp_path: Path) -> None:
    body = """
def step():
    if rank == 1:
        raise ValueError("wrong weights")
    dist.all_reduce(data)
step()
"""
    code, err = _run(tmp_path, body)
    found = _why(tmp_path)
    line = _number(tmp_path, "raise ValueError")
    assert (code, found.kind, found.ranks) == (1, "exception", (1,))
    assert re.fullmatch(
        rf"Rank 1 failed first at \S+ UTC, at \S*script\.py:{line} in step: "
        r"ValueError: wrong weights",
        found.cause,
    )
    for sentence in found.sentences:
        assert f"slackline run: {sentence}\n" in err


@pytest.mark.slow
def test_an_exception_after_the_group_s_end_is_reported(tmp_path: Path) -> None:
    body = """
try:
    if rank == 1:
        raise ValueError("wrong weights")
    dist.all_reduce(data)
finally:
    dist.destroy_process_group()
"""
    _run(tmp_path, body)
    found = _why(tmp_path)
    assert (found.kind, found.ranks) == ("exception", (1,))


@pytest.mark.slow
def test_a_lack_of_memory_is_named(tmp_path: Path) -> None:
    _run(tmp_path, "if rank == 2:\n    bytearray(1 << 60)\ndist.all_reduce(data)\n")
    found = _why(tmp_path)
    line = _number(tmp_path, "bytearray")
    assert (found.kind, found.ranks) == ("memory", (2,))
    assert re.fullmatch(
        rf"Rank 2 ran out of memory at \S+ UTC, at \S*script\.py:{line}: MemoryError", found.cause
    )


@pytest.mark.slow
def test_a_rank_killed_under_slackline_run_is_named_with_its_signal(tmp_path: Path) -> None:
    body = "if rank == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\ndist.all_reduce(data)\n"
    code, err = _run(tmp_path, body)
    found = _why(tmp_path)
    assert (code, found.kind, found.ranks) == (1, "killed", (1,))
    assert found.cause == "Rank 1 is gone: its process was killed by SIGKILL."
    assert f"slackline run: {found.cause}\n" in err


@pytest.mark.slow
def test_a_crash_is_told_with_its_line(tmp_path: Path) -> None:
    body = "import ctypes\nif rank == 1:\n    ctypes.string_at(0)\ndist.all_reduce(data)\n"
    _run(tmp_path, body)
    found = _why(tmp_path)
    line = _number(tmp_path, "string_at")
    assert (found.kind, found.ranks) == ("crash", (1,))
    assert re.fullmatch(
        rf"Rank 1 crashed at \S*script\.py:{line}: Segmentation fault\.", found.cause
    )


@pytest.mark.slow
def test_a_rank_that_torchrun_ends_shows_the_line_where_it_was(tmp_path: Path) -> None:
    body = """
def load():
    open("loading", "w").close()
    time.sleep(600)
if rank == 1:
    load()
while not os.path.exists("loading"):
    time.sleep(0.01)
dist.all_reduce(data)
"""
    code, _ = _run(tmp_path, body, "--timeout", "4s")
    found = _why(tmp_path)
    line = _number(tmp_path, "time.sleep(600)")
    assert (code, found.kind, found.ranks, found.waiting) == (1, "late", (1,), (0, 2))
    assert found.advice.startswith(f"Look at {tmp_path}/script.py:{line} on rank 1: ")


@pytest.mark.slow
def test_ranks_that_disagree_are_shown_with_their_lines(tmp_path: Path) -> None:
    body = """
if rank == 2:
    dist.all_reduce(torch.ones(20))
else:
    dist.all_reduce(data)
"""
    _run(tmp_path, body)
    found = _why(tmp_path)
    assert found.kind == "disagreement"
    assert 2 in found.ranks
    assert "posted all_reduce(sum, float32, 80 bytes" in found.cause
    assert f"rank 2 at {tmp_path}/script.py:{_number(tmp_path, 'ones(20)')}" in found.wait


@pytest.mark.slow
def test_a_link_that_is_cut_is_told_as_the_network_s_failure(tmp_path: Path) -> None:
    # A long array does not pass through in the moments in which the rail is connected again.
    body = "data = torch.ones(1 << 20)\nwhile True:\n    dist.all_reduce(data)\n"
    options = ("--fault", "link 0-1 down from 1s", "--timeout", "4s")
    _run(tmp_path, body, *options, ranks=2, SLACKLINE_RAILS="tcp")
    found = _why(tmp_path)
    # The deadline passes while the rail is lost, or while it is connected again in vain.
    assert found.kind in ("link", "stuck")
    assert found.ranks == (0, 1)


@pytest.mark.slow
def test_a_hang_without_an_error_is_explained_after_a_good_end(tmp_path: Path) -> None:
    body = """
def load():
    while not all(
        os.path.exists(f"kept/telemetry/rank-0000{each}.report.json") for each in range(3)
    ):
        time.sleep(0.01)
if rank == 1:
    load()
dist.all_reduce(data)
dist.destroy_process_group()
"""
    code, _ = _run(tmp_path, body, SLACKLINE_HANG="2s")
    found = _why(tmp_path)
    assert (code, found.kind, found.ranks, found.waiting) == (0, "late", (1,), (0, 2))
    assert re.match(
        r"All ranks ended in good order, but rank 1 came late to all_reduce number \d+ "
        r"\(40 B, ",
        found.cause,
    )
    assert " in load." in found.cause


@pytest.mark.slow
def test_a_clean_run_has_no_report(tmp_path: Path) -> None:
    code, _ = _run(tmp_path, "dist.all_reduce(data)\ndist.destroy_process_group()\n")
    found = _why(tmp_path)
    assert (code, found.kind) == (0, "clean")
    names = {path.name for path in (tmp_path / "kept" / "telemetry").iterdir()}
    assert names == {f"rank-{rank:05d}.jsonl" for rank in range(3)}


@pytest.mark.slow
def test_the_command_prints_its_facts_as_json_and_refuses_an_empty_directory(
    tmp_path: Path,
) -> None:
    _run(tmp_path, "dist.all_reduce(data)\ndist.destroy_process_group()\n")
    command = [*_SLACKLINE, "why", "--json", str(tmp_path / "kept")]
    facts = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    assert facts["kind"] == "clean"
    assert facts["problems"] == []
    (tmp_path / "empty").mkdir()
    refused = subprocess.run(
        [*_SLACKLINE, "why", "empty"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert refused.returncode == 2
    assert refused.stderr == "slackline: 'empty' has no report and no telemetry of any rank\n"

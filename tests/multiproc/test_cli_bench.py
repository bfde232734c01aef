"""Tests of `slackline bench` with real ranks, its own and those of another launcher."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from figure_faults import faults_of

from slackline.cli._bench import COLLECTIVES

_SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]
_SIZES = ["--from", "1KiB", "--to", "64KiB", "--factor", "8", "--time", "10ms"]


def run(*words: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_collective_is_measured_by_size_and_its_result_is_right(tmp_path: Path) -> None:
    done = run(*_SLACKLINE, "bench", "all-reduce", "-n", "3", *_SIZES, tmp_path=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert faults_of(done.stdout) == []
    title, head, *rows = done.stdout.splitlines()
    assert title == "all-reduce over slackline, 3 ranks, float32"
    assert head.split() == ["size", "count", "time", "algbw", "busbw", "result"]
    assert [(row.split()[2], row.split()[-1]) for row in rows] == [
        ("255", "right"),
        ("2046", "right"),
        ("16383", "right"),
    ]


@pytest.mark.parametrize(
    ("collective", "backend"),
    [
        *((each, "slackline") for each in COLLECTIVES if each != "all-reduce"),
        *((each, "gloo") for each in ("all-reduce", "all-to-all")),
    ],
)
@pytest.mark.slow
def test_every_collective_is_right_under_torchrun(
    collective: str, backend: str, tmp_path: Path
) -> None:
    bench = Path(sys.executable).with_name("slackline")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    words = [str(bench), "bench", collective, "--backend", backend, *_SIZES, "--json"]
    done = run(*launcher, "--nproc-per-node", "2", *words, tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["bytes"] for row in rows] == [1024, 8192, 65536]
    for row in rows:
        assert row["right"]
        assert row["busbw_bytes_per_second"] == pytest.approx(
            row["bytes"] / row["seconds"] * (0.5 * COLLECTIVES[collective] or 1)
        )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["all-sum"], "there is no collective 'all-sum'; there are all-reduce, all-gather, "),
        (["--from", "1MiB", "--to", "1KiB"], "--from 1MiB must be at least 1B and at most --to"),
        (["--factor", "1"], "--factor must be at least 2, not 1"),
        (["--time", "0s"], "--time must be more than 0, not 0s"),
        (["-n", "0"], "ranks must be a positive integer, not 0"),
    ],
)
def test_a_wrong_option_is_refused(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from slackline.cli import main

    assert main(["bench", *words]) == 2
    assert problem in capsys.readouterr().err

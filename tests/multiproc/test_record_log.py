"""Tests of SLACKLINE_LOG with real ranks, with and without a directory of telemetry."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = """
import torch
from torch import distributed as dist

dist.init_process_group("slackline")
dist.all_reduce(torch.ones(1024))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("with_file", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_each_rank_says_what_it_does(tmp_path: Path, with_file: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT)
    settings = {"SLACKLINE_LOG": "trace", "SLACKLINE_RAILS": "tcp"}
    if with_file:
        settings["SLACKLINE_TELEMETRY"] = str(tmp_path / "traces")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launcher, "--nproc-per-node", "2", str(script)],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    for rank in range(2):
        begin = f"slackline rank {rank} "
        mine = [line.removeprefix(begin) for line in lines if line.startswith(begin)]
        for pattern in (
            r"group: group \d+ of 2 ranks is open: 0, 1",
            r"setting: rails = tcp \(environment\)",
            r"plan: \S+ for all_reduce of at most \d+ (B|[KM]iB): ",
            r"operation: all_reduce \d+ of group \d+: 4 KiB by \S+ over 0 in ",
            r"rail: the rank closes its engine",
            r"group: the engine has ended: .*tcp_frames_sent",
        ):
            assert [line for line in mine if re.match(pattern, line)], (pattern, mine)
        operations = [line for line in mine if re.match(r"operation: all_reduce .*: 4 KiB ", line)]
        assert len(operations) == 1, "the operation of the program is told once"

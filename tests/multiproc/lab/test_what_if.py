"""Tests of `slackline what-if --apply`: a kept run is predicted, changed, and run again."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]

_TRAIN = """
import sys, torch
import torch.distributed as dist
from slackline.overlap import DataParallel
torch.set_num_threads(1)
dist.init_process_group("slackline")
model = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with DataParallel(model, optimizer, group_bytes=int(sys.argv[1])) as wrapped:
    for _ in range(12):
        optimizer.zero_grad()
        wrapped(torch.randn(8, 128)).square().mean().backward()
        optimizer.step()
dist.destroy_process_group()
"""


def slackline(*words: object, folder: Path) -> str:
    ended = subprocess.run(
        [*_SLACKLINE, *map(str, words)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def rows_of(printed: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(printed)["rows"]
    return rows


@pytest.mark.slow
def test_a_kept_run_is_predicted_and_run_with_its_changes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_TRAIN)
    lab = ("--lab", "--ranks", "3", "--rate", "100Mbit")
    slackline("run", *lab, "--keep", "kept", "train.py", "65536", folder=tmp_path)
    changes = ("--change", "rate 200Mbit; plan mesh", "--change", "hosts 2")
    # The script is found although the command is given in another directory.
    printed = slackline(
        "what-if", tmp_path / "kept", *changes, "--apply", "--json", folder=Path("/")
    )
    first, faster, fewer = rows_of(printed)
    assert [row["change"] for row in (first, faster, fewer)] == [
        "as measured",
        "rate 200Mbit; plan mesh",
        "hosts 2",
    ]
    for row in (first, faster, fewer):
        assert row["p95_ns"] >= row["p50_ns"] > 0
        assert row["measured_p95_ns"] >= row["measured_p50_ns"] > 0
        assert row["error"] == row["p50_ns"] / row["measured_p50_ns"] - 1


@pytest.mark.slow
def test_a_command_behind_the_options_is_run_in_place_of_the_kept_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_TRAIN)
    slackline("run", "--ranks", "2", "--keep", "kept", "train.py", "65536", folder=tmp_path)
    (tmp_path / "kept" / "job.json").unlink()
    behind = ("--", "--ranks", "2", "train.py", "0")
    printed = slackline(
        "what-if", "kept", "--change", "plan direct", "--apply", "--json", *behind, folder=tmp_path
    )
    _, changed = rows_of(printed)
    assert changed["measured_p50_ns"] > 0

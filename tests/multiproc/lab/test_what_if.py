"""Tests of `slackline what-if --apply`: a kept run is predicted, changed, and run again."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(520)
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

_PIPELINE = """
import sys, torch
from pathlib import Path
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from slackline.pipeline import Schedule
from slackline.testing.timed_stage import TimedStage
dist.init_process_group("slackline")
rank, size = dist.get_rank(), dist.get_world_size()
part = TimedStage(8, forward_ns=10**7, backward_input_ns=10**7, backward_weight_ns=10**7)
stage = PipelineStage(part, rank, size, torch.device("cpu"))
asked = sys.argv[1] if len(sys.argv) > 1 else None
schedule = Schedule(stage, 4, lambda out, target: (out * target).sum(), schedule=asked)
x = torch.ones(4, 8)
for _ in range(6):
    part.weight.grad = None
    schedule.step(
        *((x,) if rank == 0 else ()), target=x if rank == size - 1 else None, return_outputs=False
    )
if rank == 0:
    with Path("plans").open("a") as plans:
        print(schedule.plan.name, schedule.policy, schedule.scenario.memory[0].cap, file=plans)
dist.destroy_process_group()
"""


def ended(*words: object, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_SLACKLINE, *map(str, words)],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def slackline(*words: object, folder: Path, **variables: str) -> str:
    found = ended(*words, folder=folder, **variables)
    assert found.returncode == 0, found.stderr
    return found.stdout


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


@pytest.mark.slow
def test_a_kept_pipeline_is_predicted_and_run_with_other_schedules(tmp_path: Path) -> None:
    (tmp_path / "pipe.py").write_text(_PIPELINE)
    start = ("run", "--ranks", "3", "--keep", "kept", "pipe.py")
    slackline(*start, folder=tmp_path, SLACKLINE_SCHEDULE="1f1b")
    changes = ("--change", "schedule gpipe", "--change", "schedule zb-h1 memory 3")
    printed = slackline("what-if", "kept", *changes, "--apply", "--json", folder=tmp_path)
    rows = rows_of(printed)
    plans = (tmp_path / "plans").read_text().splitlines()
    assert plans == ["1f1b ready 3", "gpipe ready 4", "zb-h1 ready 3"]
    for row in rows:
        assert row["error"] == row["p50_ns"] / row["measured_p50_ns"] - 1
    # An F of each of two stages precedes the F, B and W of 4 microbatches, of 10 ms each.
    assert all(row["measured_p50_ns"] >= (2 + 3 * 4) * 10**7 for row in rows)


@pytest.mark.slow
def test_a_script_that_chooses_another_schedule_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "pipe.py").write_text(_PIPELINE)
    slackline("run", "--ranks", "2", "--keep", "kept", "pipe.py", folder=tmp_path)
    behind = ("--", "--ranks", "2", "pipe.py", "gpipe")
    found = ended(
        "what-if", "kept", "--change", "schedule 1f1b", "--apply", *behind, folder=tmp_path
    )
    assert found.returncode == 2
    assert found.stderr.endswith(
        "slackline: the job with 'schedule 1f1b' used 'gpipe' for schedule: its script chooses it\n"
    )

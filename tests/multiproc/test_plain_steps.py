"""Tests that scripts with torch's own wrappers show their steps under `slackline run`."""

import os
import re
import subprocess
import sys
from pathlib import Path

from slackline.history import Job

_SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]
_STEPS = 12
_SCRIPT = f"""
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("slackline")
models = [nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)) for _ in range(2)]
replicas, sharded = DistributedDataParallel(models[0]), models[1]
mesh = distributed.device_mesh.init_device_mesh("cpu", (2,))
fully_shard(sharded, mesh=mesh)
for model in (replicas, sharded):
    optimizer = torch.optim.Adam(model.parameters())
    for step in range({_STEPS}):
        for part in range(2):
            model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
distributed.destroy_process_group()
"""


def test_steps_of_ddp_and_fsdp_are_counted_with_their_waits(tmp_path: Path) -> None:
    script, kept = tmp_path / "train.py", tmp_path / "kept"
    script.write_text(_SCRIPT)
    command = [*_SLACKLINE, "run", "--ranks", "2", "--keep", str(kept), str(script)]
    done = subprocess.run(
        command, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert re.search(rf"steps +│ {2 * _STEPS}, ", done.stderr), done.stderr
    assert "of a step wait for communication" in done.stderr
    job = Job.recorded(kept)
    assert sorted(job.ranks) == [0, 1]
    for rank in job.ranks.values():
        # One step for two backward passes: gradients are accumulated. The second optimizer goes on
        # where the first one, which is gone, has ended.
        assert [(each.optimizer, each.step) for each in rank.steps] == [
            (0, step) for step in range(2 * _STEPS)
        ]
        assert all(each.plain and 0 <= each.exposed_ns <= each.wall_ns for each in rank.steps)
        assert sum(each.exposed_ns for each in rank.steps) > 0
        # DDP reduces all gradients once in each backward pass, FSDP's shards may be padded.
        reduced = [each.reduced_bytes for each in rank.steps]
        assert set(reduced[1:_STEPS]) == {2 * 4 * 2 * (64 * 64 + 64)}
        assert min(reduced[_STEPS + 1 :]) > 0

"""Tests that causes of slow steps are named while real ranks train."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]

_SLOW_RANK_1 = """
import time
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("slackline")
model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
wrapped = DistributedDataParallel(model, bucket_cap_mb=0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100):
    slow = distributed.get_rank() == 1 and step >= 60
    # The time of a slow computation, long beside what a busy machine adds to any rank's.
    time.sleep(0.6 if slow else 0.02)
    wrapped(torch.ones(64, 256)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_a_late_rank_of_distributed_data_parallel_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SLOW_RANK_1)
    command = [*_SLACKLINE, "run", "--ranks", "3", str(script)]
    done = subprocess.run(
        command, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    causes = [line for line in done.stderr.splitlines() if "cause: " in line]
    begin = "slackline run: cause: rank 1: it posts its collectives late: it takes "
    assert [line[: len(begin)] for line in causes] == [begin]

"""Tests of programs that split a model over ranks: they compute the same bits as over gloo.

Every group has two ranks, and a sum of two numbers does not depend on their order.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from example_ranks import asked, example

PROGRAMS = Path(__file__).with_name("parallel_programs")
SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]
BACKENDS = ("gloo", "slackline")
DEEPSPEED_SECONDS = 280


def prepare():
    """Import the modules that programs import."""
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel  # noqa: F401


def program(rank, size, path):
    return example(rank, size, path)


@pytest.mark.parametrize(
    ("name", "size", "options"),
    [
        ("tensor_parallel", 2, ()),
        pytest.param("fsdp2_tensor_parallel", 4, (), marks=pytest.mark.slow),
        pytest.param("pipeline_tensor_parallel", 4, ("ScheduleGPipe",), marks=pytest.mark.slow),
        pytest.param("pipeline_tensor_parallel", 4, ("Schedule1F1B",), marks=pytest.mark.slow),
    ],
)
def test_a_split_model_learns_the_bits_that_it_learns_over_gloo(job, name, size, options):
    from torch import distributed as dist

    said = {}
    for backend in BACKENDS:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        given = asked(store, str(PROGRAMS / f"{name}.py"), backend, *options)
        answers = job(size, program, bare=True, environment=given)
        assert [message for _, message in answers] == [""] * size
        said[backend] = [output.splitlines() for output, _ in answers]
    assert said["slackline"] == said["gloo"]
    assert all(re.fullmatch("parameters [0-9a-f]{64}", lines[-1]) for lines in said["gloo"])
    assert len(set(said["gloo"][-1])) > 4  # The losses change from step to step.


@pytest.mark.slow
@pytest.mark.timeout(2 * DEEPSPEED_SECONDS + 20)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_zero_learns_the_bits_that_it_learns_over_gloo(stage, tmp_path):
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed; pip install 'slackline-torch[deepspeed]' does it")
    said = {}
    for backend in BACKENDS:
        path = str(PROGRAMS / "deepspeed_zero.py")
        ended = subprocess.run(
            [*SLACKLINE, "run", "--ranks", "2", path, backend, str(stage)],
            cwd=tmp_path,
            env=os.environ | {"DS_ACCELERATOR": "cpu", "TMPDIR": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEEPSPEED_SECONDS,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        lines = ended.stdout.splitlines()
        assert f"backend {backend}" in lines
        said[backend] = [line for line in lines if line.startswith(("loss ", "parameters "))]
    assert len(said["gloo"]) == 6
    assert said["slackline"] == said["gloo"]

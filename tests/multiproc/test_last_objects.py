"""Tests of the end of ranks whose groups, tensors or Works torch keeps longer than the interpreter.

Each test starts interpreters of its own: a forked rank leaves without the end of an interpreter.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch.distributed as dist

PROGRAM = Path(__file__).with_name("last_objects.py")
WITHOUT_NUMPY = Path(__file__).with_name("without_numpy.py")
RANKS = 2
SECONDS = 280
EVERY = ("works", "ddp", "fsdp2", "tensor_parallel", "dtensor", "overlapped", "pipelined")
pytestmark = pytest.mark.timeout(SECONDS + 20)

NO_NUMPY = "Failed to initialize NumPy"
"""torch's own warning where numpy is missing."""


def ran(*arguments: str | Path) -> list[tuple[int, str, str]]:
    """Run a script on all ranks; return the exit code and both outputs of each rank."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    given = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(RANKS),
    }
    command = [sys.executable, "-W", f"ignore:{NO_NUMPY}", *arguments]
    with ExitStack() as stack:
        started = []
        for rank in range(RANKS):
            process = subprocess.Popen(
                command,
                env=os.environ | given | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.kill)
            started.append(process)
        outputs = [process.communicate(timeout=SECONDS) for process in started]
        return [(p.returncode, *said) for p, said in zip(started, outputs, strict=True)]


@pytest.mark.parametrize(
    ("kinds", "options", "program"),
    [
        (("works", "tensor_parallel"), [], [PROGRAM]),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (EVERY, [], [PROGRAM]),
                (EVERY, ["--destroy"], [PROGRAM]),
                # torch itself needs numpy to send the objects by which pipelines agree.
                (EVERY[:-1], ["--destroy"], [WITHOUT_NUMPY, PROGRAM]),
            ]
        ),
    ],
)
def test_a_rank_ends_silently_with_objects_that_torch_keeps(
    kinds: Sequence[str], options: list[str], program: list[Path]
) -> None:
    assert ran(*program, *kinds, *options) == [(0, f"left {' '.join(kinds)}\n", "")] * RANKS


@pytest.mark.slow
def test_collectives_that_nobody_waits_for_leave_only_torchs_own_warning() -> None:
    for code, _, errors in ran(PROGRAM, "unwaited", "--destroy"):
        assert code == 0
        assert "unwaited collective calls" in errors
        assert "nanobind" not in errors

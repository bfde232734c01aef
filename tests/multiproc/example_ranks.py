"""Example programs on forked ranks: `job(4, example, bare=True, environment=asked(store, ...))`.

A new process needs seconds to import torch and scikit-learn; a forked process has them already.
"""

import contextlib
import io
import os
import runpy
import sys
from pathlib import Path

import pytest
from torch import distributed as dist

__all__ = ["EXAMPLES", "asked", "example", "prepare", "refusal"]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def prepare() -> None:
    """Import the modules that examples import, scikit-learn among them."""
    sys.path.insert(0, str(EXAMPLES))
    import torch.distributed.pipelining  # noqa: F401
    import train_digits  # noqa: F401


def asked(store: dist.TCPStore, name: str, *arguments: object) -> dict[str, str]:
    """Return the environment of ranks that run examples/NAME with these arguments."""
    return {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "EXAMPLE": name,
        "ARGUMENTS": " ".join(map(str, arguments)),
    }


def example(rank: int, size: int, _: str) -> tuple[str, str]:
    """Run the example as a rank started by torchrun would. Return its output and the message of its
    exit."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    output, message = io.StringIO(), ""
    with contextlib.redirect_stdout(output):
        try:
            run_example()
        except SystemExit as end:
            message = str(end.code or "")
    return output.getvalue(), message


def refusal(rank: int, size: int, _: str) -> tuple[int, str]:
    """Run the example outside any job, where it refuses to run; return its exit code and its
    error output."""
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), pytest.raises(SystemExit) as end:
        run_example()
    return end.value.code, errors.getvalue()


def run_example() -> None:
    """Run the example that the environment names as a program."""
    path = EXAMPLES / os.environ["EXAMPLE"]
    sys.argv = [str(path), *os.environ["ARGUMENTS"].split()]
    sys.path.insert(0, str(path.parent))
    runpy.run_path(str(path), run_name="__main__")

"""The project's own tests on this machine: those of devices, and those of the backend."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

from rank import Rank

__all__ = ["run"]

_ROOT = Path(__file__).resolve().parents[2]
_ON_DEVICES = (
    "tests/unit/backend/test_cuda.py",
    "tests/multiproc/test_overlap_cuda.py",
    "tests/multiproc/pipeline/test_cuda.py",
)
_BACKEND = ("tests/unit/backend/test_work.py", "tests/unit/backend/test_reductions.py")
_ON_CPU = "tests/unit/backend/test_work.py::test_a_future_holds_the_tensors"
"""The test that shows, without a device, that the stage's code runs."""
_LIMIT_S = 30
"""The limit of each run of pytest; all four end within the limit of the stage."""


def run(rank: Rank) -> None:
    if importlib.util.find_spec("pytest") is None:
        rank.skip("tests", "pytest is not installed")
        return
    if rank.cpu:
        rank.skip("tests of devices", "no device")
        _test(rank, "the backend", _ON_CPU)
        return
    for path in _ON_DEVICES:
        _test(rank, path, "-m", "cuda", path)
    _test(rank, "the backend", *_BACKEND)


def _test(rank: Rank, name: str, *options: str) -> None:
    """Run tests in a process of their own; note the numbers that pytest tells."""
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    environment = {key: value for key, value in os.environ.items() if key not in _OF_THE_STAGE}
    try:
        ended = subprocess.run(
            [*command, "-x", *options],
            cwd=_ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        rank.note(f"tests: {name}", passed=0, failed=1, said=f"not ended after {_LIMIT_S} s")
        return
    numbers = {word: int(count) for count, word in re.findall(r"(\d+) (\w+)", _last(ended.stdout))}
    print(ended.stdout[-4000:], ended.stderr[-4000:])
    rank.note(
        f"tests: {name}",
        passed=numbers.get("passed", 0),
        failed=numbers.get("failed", 0) + numbers.get("error", 0) + numbers.get("errors", 0),
        skipped=numbers.get("skipped", 0),
        said="" if ended.returncode == 0 else _last(ended.stdout)[:200],
    )


_OF_THE_STAGE = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def _last(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")

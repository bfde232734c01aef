"""Tests of the examples that train with a library over slackline."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

LIBRARIES = Path(__file__).parents[3] / "examples" / "libraries"
SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]

SECONDS = 280

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 20)]


def needs(library: str, extra: str) -> None:
    """Skip the test where a library is not installed."""
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed; pip install 'slackline-torch[{extra}]' does it")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Provide an empty directory with a short path: Ray makes sockets deep inside of it."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as path:
        yield Path(path)


def output(*command: str, folder: Path) -> str:
    """Return the output of a command that succeeds."""
    ended = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("library", ["lightning", "accelerate", "transformers"])
def test_a_library_trains_over_slackline_by_its_name(library: str, tmp_path: Path) -> None:
    needs(library, "programs")
    script = LIBRARIES / f"train_{library}.py"
    said = output(*SLACKLINE, "run", "--ranks", "2", str(script), folder=tmp_path)
    *_, losses, backend = said.splitlines()
    found = re.fullmatch(r"loss (\d+\.\d+), then (\d+\.\d+)", losses)
    assert found is not None, said
    assert 0 < float(found[2]) < float(found[1]) / 2
    assert backend == "over slackline"


def test_ray_train_trains_over_slackline(folder: Path) -> None:
    needs("ray", "ray")
    said = output(sys.executable, str(LIBRARIES / "train_ray.py"), folder=folder)
    found = dict(line.split(": ", 1) for line in said.splitlines()[-4:])
    assert 0 < float(found["last loss"]) < float(found["first loss"]) / 2
    assert (found["parameters alike"], found["backend"]) == ("True", "slackline")

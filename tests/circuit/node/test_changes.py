"""Tests of the two changes that docs/circuits/change.md walks through, in a copy of the package."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import slackline
from slackline import _native

HOME = Path(slackline.__file__).parent
PAGE = Path(__file__).parents[3] / "docs" / "circuits" / "change.md"
BLOCK = re.compile(r'^```(\w+) title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
BLOCKS = {title: body for _, title, body in BLOCK.findall(PAGE.read_text())}
MOST_FILES = {"a type": 4, "a stage": 2}
CHECKS = {"a type": "check_type.py", "a stage": "check_stage.py"}
FAULTS = {
    "a type": ("circuit/datapath/_adder.py", "& total[32]", "& total[31]"),
    "a stage": ("circuit/node/_stage.py", "seen.eq(wrong & ~i.last)", "seen.eq(0)"),
}
LAUNCHER = """
import runpy, sys
folder, program = sys.argv[1:]
# An editable installation finds its own files first.
sys.meta_path[:] = [each for each in sys.meta_path if "Redirecting" not in type(each).__name__]
sys.path[:0] = [folder, folder + "/programs"]
import slackline
assert slackline.__file__.startswith(folder)
runpy.run_path(folder + "/programs/" + program, run_name="__main__")
"""

pytestmark = pytest.mark.skipif(
    shutil.which("patch") is None, reason="patch is missing: apt install patch"
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Provide a folder with a copy of the package and the page's programs."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(HOME, tmp_path / "slackline", ignore=ignored)
    native = Path(_native.__file__)
    if not (tmp_path / "slackline" / native.name).exists():
        (tmp_path / "slackline" / native.name).symlink_to(native)
    (tmp_path / "programs").mkdir()
    for title, body in BLOCKS.items():
        if title.endswith(".py"):
            (tmp_path / "programs" / title).write_text(body)
    return tmp_path


def change(copy: Path, title: str) -> None:
    subprocess.run(
        ["patch", "--strip=1", "--quiet"], input=BLOCKS[title], text=True, cwd=copy, check=True
    )


def run(copy: Path, program: str) -> str:
    """Run a program of the page with the copied package; return the last line of its errors."""
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER, str(copy), program],
        env={**os.environ, "XDG_CACHE_HOME": str(copy / "cache")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert (done.returncode != 0) == bool(done.stderr)
    return done.stderr.splitlines()[-1] if done.stderr else ""


@pytest.mark.parametrize("title", MOST_FILES)
def test_a_change_fits_the_sources_and_has_few_files(copy: Path, title: str) -> None:
    assert 0 < BLOCKS[title].count("\n+++ ") <= MOST_FILES[title]
    change(copy, title)
    assert not list(copy.rglob("*.rej"))


@pytest.mark.slow
@pytest.mark.simulates
@pytest.mark.timeout(300)
@pytest.mark.parametrize("title", MOST_FILES)
def test_a_change_gives_right_sums(copy: Path, title: str) -> None:
    assert run(copy, CHECKS[title]) != ""
    change(copy, title)
    assert run(copy, CHECKS[title]) == ""


@pytest.mark.slow
@pytest.mark.simulates
@pytest.mark.timeout(300)
@pytest.mark.parametrize("title", MOST_FILES)
def test_a_fault_of_a_change_is_found(copy: Path, title: str) -> None:
    change(copy, title)
    file, right, wrong = FAULTS[title]
    text = (copy / "slackline" / file).read_text()
    assert text.count(right) == 1
    (copy / "slackline" / file).write_text(text.replace(right, wrong))
    assert run(copy, CHECKS[title]).startswith("AssertionError")

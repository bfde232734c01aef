"""Tests of file sizes: a file stays small enough to hold one idea."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "native", "tests", "examples", "benchmarks")
SUFFIXES = {".py", ".pyi", ".cc", ".h", ".cmake"}
LONGEST = 600
LARGEST = 256 << 10  # in bytes; the largest files are pictures
GENERATED = {"src/slackline/_native.pyi"}


def lengths() -> dict[str, int]:
    return {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in SUFFIXES
    }


def test_no_file_is_longer_than_the_budget() -> None:
    counts = lengths()
    assert {path: n for path, n in counts.items() if n > LONGEST and path not in GENERATED} == {}


def test_no_tracked_file_is_larger_than_a_picture() -> None:
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("an archive of the project without git names no tracked files")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    sizes = {str(path.relative_to(ROOT)): path.stat().st_size for path in paths if path.exists()}
    assert len(sizes) > 100
    assert {path: size for path, size in sizes.items() if size > LARGEST} == {}

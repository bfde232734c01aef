"""Tests of file sizes: a file stays small enough to hold one idea."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "native", "tests", "examples", "benchmarks")
SUFFIXES = {".py", ".pyi", ".cc", ".h", ".cmake"}
LONGEST = 600
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

"""Tests of file sizes: a file stays small enough to hold one idea."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "native", "tests", "examples", "benchmarks")
SUFFIXES = {".py", ".pyi", ".cc", ".h", ".cmake"}
LONGEST = 600
ASK_FROM = 400
JUSTIFIED: dict[str, str] = {
    "src/slackline/_native.pyi": "generated",
}
"""The files of more than ASK_FROM lines, each with the reason why it still holds one idea."""


def lengths() -> dict[str, int]:
    return {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in SUFFIXES
    }


def test_no_file_is_longer_than_the_budget() -> None:
    too_long = {path: count for path, count in lengths().items() if count > LONGEST}
    assert not too_long


def test_a_file_that_is_more_than_one_idea_long_says_why() -> None:
    long = {path: count for path, count in lengths().items() if count > ASK_FROM}
    assert {path: count for path, count in long.items() if path not in JUSTIFIED} == {}

"""Tests that the names and paths on the pages and in their drawings exist: modules, files."""

import importlib
import re
from pathlib import Path

import pytest
from page_blocks import PAGES, ROOT

NAME = re.compile(r"\bslackline(?:\.[A-Za-z_]\w*)+")
FILE = re.compile(
    r"(?<![\w/.-])(?:src|native|tests|benchmarks|examples|docs|\.ci)/[\w./-]*\w(?![\w*<])"
)
TODAY = [page for page in PAGES if page.name != "CHANGELOG.md"]
"""The pages that describe the present state: a list of changes may name former parts."""
DRAWINGS = [each for each in sorted((ROOT / "docs").rglob("*.svg")) if "<text" in each.read_text()]


def exists(name: str) -> bool:
    """Return whether a dotted name leads to a module, or to an attribute or field in a module."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return part in getattr(found, "__annotations__", {}) and part == parts[-1]
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("slackline.nic", True),
        ("slackline.overlap.DataParallel.no_sync", True),
        ("slackline.nic.NicOptions.timeout", True),
        ("slackline.overlap.DataParalel", False),
        ("slackline.network", False),
        ("slackline.nic.NicOptions.timeout.unit", False),
    ],
)
def test_a_name_is_looked_up_as_python_does(name: str, there: bool) -> None:
    assert exists(name) == there


@pytest.mark.parametrize("page", TODAY + DRAWINGS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_names_of_slackline_on_a_page_exist(page: Path) -> None:
    named = sorted(set(NAME.findall(page.read_text())))
    assert [name for name in named if not exists(name)] == []


@pytest.mark.parametrize("page", TODAY, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_that_a_page_names_exist(page: Path) -> None:
    named = sorted(set(FILE.findall(page.read_text())))
    assert [path for path in named if not (ROOT / path).exists()] == []

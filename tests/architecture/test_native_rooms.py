"""The folders of the native core include each other in one direction only."""

import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "native" / "src"
MAY_INCLUDE = {
    "base": set[str](),
    "kernels": set[str](),
    "rail": {"base"},
    "engine": {"base", "rail"},
    "lab": {"base"},
    "sim": set[str](),
}
"""The folders that each folder may include, besides itself and the public headers."""


def test_every_folder_has_its_rule() -> None:
    assert {each.name for each in SOURCES.iterdir()} == set(MAY_INCLUDE)


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_a_folder_includes_only_what_lies_below_it(folder: str) -> None:
    for path in sorted((SOURCES / folder).iterdir()):
        included = set(re.findall(r'^#include "\.\./(\w+)/', path.read_text(), re.MULTILINE))
        assert included <= MAY_INCLUDE[folder], path.name

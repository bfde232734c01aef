"""Tests that the reference shows docstrings of packages without the maps of private modules."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("griffe", reason="the site needs slackline-torch[docs]")

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location(
    "without_private_maps", ROOT / "website" / "without_private_maps.py"
)
assert SPEC is not None
assert SPEC.loader is not None
MODULE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(MODULE)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "A room.\n\n    _files   files\n    views/   views\n\nNothing here writes.",
            "A room.\n\nNothing here writes.",
        ),
        ("A wrapper.\n\nWrapper ─ _wrapper   the class\n    _checks   tests\n", "A wrapper."),
        ("A group.\n\n    call ─ _group ─ nic\n\n    _names   names\n", "A group."),
        (
            "An example:\n\n    model = DataParallel(model)\n\nMore.",
            "An example:\n\n    model = DataParallel(model)\n\nMore.",
        ),
    ],
)
def test_maps_are_left_out_and_examples_stay(text: str, shown: str) -> None:
    found = MODULE.without_maps(text)
    assert [line for line in found.splitlines() if line] == [
        line for line in shown.splitlines() if line
    ]

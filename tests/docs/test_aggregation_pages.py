"""Tests that the trainings of two pages go through the aggregation node, as the pages say.

The commands are those of the pages, word for word. The job would train without the node just as
well, so the node's own count is checked, and not the exit code alone.
"""

import re
from pathlib import Path

import pytest
from page_blocks import ROOT, Block, blocks
from test_commands import SECONDS, desk, start

__all__ = ["desk"]

HERE = str(Path(__file__).relative_to(ROOT))

OVER = re.compile(
    r"^group [0-9a-f]{8}: over after (?P<operations>\d+) operations, (?P<bytes>[\d.]+ \w+) added"
    r"(?:, (?P<frames>\d+) frames by its circuit \((?P<summed>[\d.]+ \w+)\)"
    r"(?:, (?P<cycles>\d+) cycles \(busy .*?\))?)?"
    r": every worker has closed the group$",
    re.MULTILINE,
)


def block_of(page: str) -> Block:
    (found,) = [each for each in blocks(ROOT / "docs" / "how-to" / page) if each.elsewhere == HERE]
    return found


UNITS = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20}


def number(text: str | None) -> float:
    """Return a count, or a size in bytes: number("44.6 MiB")."""
    value, _, unit = (text or "0").partition(" ")
    return float(value) * UNITS[unit or "B"]


def last_line(page: str, printed: str) -> dict[str, float]:
    """Return the counts of the node's last line, which must look like the line on the page."""
    shown = OVER.search((ROOT / "docs" / "how-to" / page).read_text())
    over = OVER.search(printed)
    assert shown is not None
    assert over is not None, printed
    assert "is not used" not in printed
    counts = {name: number(count) for name, count in over.groupdict().items()}
    expected = {name: number(count) for name, count in shown.groupdict().items()}
    assert {name for name, count in counts.items() if count} == {
        name for name, count in expected.items() if count
    }
    return counts


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_the_node_adds_all_gradients_of_its_page(desk: Path) -> None:
    printed = start(block_of("aggregate.md"), desk)
    counts = last_line("aggregate.md", printed)
    rows = re.findall(r"^│ +\d │ +(\d+) │ +[\d.]+ │ +19\.3 MiB │", printed, re.MULTILINE)
    assert rows == ["33", "33"], printed
    assert counts["operations"] > 33
    assert counts["bytes"] > 2 * 19.3 * 2**20


@pytest.mark.slow
@pytest.mark.simulates
@pytest.mark.timeout(SECONDS)
def test_the_circuit_adds_the_gradients_of_its_page(desk: Path) -> None:
    printed = start(block_of("circuit.md"), desk)
    counts = last_line("circuit.md", printed)
    rows = re.findall(r"^│ +\d │ +(\d+) │ +[\d.]+ │ +1\.75 MiB │", printed, re.MULTILINE)
    assert rows == ["3", "3"], printed
    assert counts["operations"] >= 3
    assert counts["summed"] > 2 * 1.75 * 2**20

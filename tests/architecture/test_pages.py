"""Tests of the documentation: its tables name the options and commands that exist in the code."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from slackline import errors
from slackline.cli import app
from slackline.env import Environment
from slackline.nic import NicOptions
from slackline.nic.offload._circuit_nic import _CHECK_EVERY

ROOT = Path(__file__).parents[2]


def rows(page: str) -> set[str]:
    """Return the first cells of the rows `| `name` | ...` in the page's tables, without the
    backquotes."""
    lines = (ROOT / page).read_text().splitlines()
    return {line.split("`")[1] for line in lines if line.startswith("| `")}


def test_the_page_on_settings_has_a_row_for_each_variable() -> None:
    assert rows("docs/settings.md") == set(Environment.variables())


def test_the_page_on_settings_has_the_defaults_of_the_engine() -> None:
    lines = (ROOT / "docs/settings.md").read_text().splitlines()
    cells = [line.strip("|").split("|") for line in lines if line.startswith("| `")]
    default = {row[0].strip(" `"): row[2].strip() for row in cells}
    options = NicOptions()
    assert default["SLACKLINE_ORDER"] == f"`{options.order}`"
    assert default["SLACKLINE_PLAN"] == f"`{options.plan}`"
    assert default["SLACKLINE_SHARES"] == f"`{options.shares}`"
    assert default["SLACKLINE_NIC"] == f"`{options.nic}`"
    assert default["SLACKLINE_RAILS"] == f"`{','.join(options.rails)}`"
    assert default["SLACKLINE_TLS"] == f"`{options.tls}`"
    assert default["SLACKLINE_ARENA"] == f"`{options.arena_bytes >> 30}GiB`"
    wire, memory = options.wire_segment_bytes >> 10, options.memory_segment_bytes >> 10
    segment = f"`{wire}KiB` on wires, `{memory}KiB` in shared memory"
    assert default["SLACKLINE_SEGMENT"] == segment


def test_the_help_and_the_page_have_the_interval_of_checked_operations() -> None:
    (option,) = [
        parameter
        for parameter in typer.main.get_command(app).commands["run"].params  # type: ignore[attr-defined]
        if parameter.name == "nic_check"
    ]
    asked = f"SLACKLINE_NIC_CHECK, else {_CHECK_EVERY} if the circuit is compiled already, else 0."
    assert option.help.endswith(f"Default: {asked}")
    lines = (ROOT / "docs/settings.md").read_text().splitlines()
    (row,) = [line for line in lines if line.startswith("| `SLACKLINE_NIC_CHECK` |")]
    assert row.split("|")[3].strip() == f"{_CHECK_EVERY}, if a circuit has been compiled here"


def test_the_page_on_errors_has_a_row_for_each() -> None:
    assert rows("docs/errors.md") == set(errors.__all__) - {"SlacklineError"}


def test_every_decision_is_in_the_list() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text()
    assert [path.name for path in folder.glob("[0-9]*.md") if path.name not in listed] == []


def commands(command: Any, name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command below this one with its options: ("slackline run", ["--ranks", ...])."""
    for sub, each in getattr(command, "commands", {}).items():
        yield from commands(each, f"{name} {sub}")
    if not hasattr(command, "commands"):
        options = [option for parameter in command.params for option in parameter.opts]
        yield name, [option for option in options if option.startswith("--")]


@pytest.mark.parametrize(
    ("name", "options"), list(commands(typer.main.get_command(app), "slackline"))
)
def test_a_page_tells_each_option_of_a_command(name: str, options: list[str]) -> None:
    pages = set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs" / "command-line.md"}
    texts = [page.read_text() for page in pages]
    told = "\n".join(text for text in texts if name in text)
    assert [option for option in options if not re.search(rf"{option}(?![\w-])", told)] == []


def test_every_page_is_in_the_menu_of_the_site() -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    found = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*/README.md")]
    pages = [path.relative_to(ROOT) for path in found]
    assert [str(page) for page in pages if f" {page}\n" not in menu + "\n"] == []

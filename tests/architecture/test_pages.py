"""Tests of the documentation: its tables name the options and commands that exist in the code."""

from pathlib import Path

from slackline import errors
from slackline.env import Environment

ROOT = Path(__file__).parents[2]


def rows(page: str) -> set[str]:
    """Return the first cells of the rows `| `name` | ...` in the page's tables, without the
    backquotes."""
    lines = (ROOT / page).read_text().splitlines()
    return {line.split("`")[1] for line in lines if line.startswith("| `")}


def test_the_page_on_settings_has_a_row_for_each_variable() -> None:
    assert rows("docs/settings.md") == set(Environment.variables())


def test_the_page_on_errors_has_a_row_for_each() -> None:
    assert rows("docs/errors.md") == set(errors.__all__) - {"SlacklineError"}


def test_every_decision_is_in_the_list() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text()
    assert [path.name for path in folder.glob("[0-9]*.md") if path.name not in listed] == []

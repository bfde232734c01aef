"""The packaged tables: every one is complete, and figures with published parameters are close."""

from functools import cache
from pathlib import Path

import pytest

from slackline.reproduce import Comparison, Folder, compare
from slackline.sim import read_experiment

FOLDER = Folder()
TABLES = {table.name: table for table in FOLDER.tables()}
QUICK = ("zero-bubble-order", "aggregation-100-mb", "aggregation-circuit")
"""The tables that are simulated in every run of the tests."""
DEVIATIONS = {
    "job-phases": {
        f"adaptation and delegation, {phase}"
        for phase in (
            "link 2 30ms",
            "links 0, 5 40ms",
            "link 6 20ms",
            "links 2, 3, 6 50ms",
            "link 5 60ms",
            "links 1, 6 60ms",
            "links 4, 5 50ms",
        )
    },
    "pipeline-on-a-lab": {
        "adaptation, last link 0ms",
        "ready within 8 activations, all links 60ms",
        "ready within 8 activations, all links redrawn",
    },
    "pipeline-parts": {"zero bubble, last link 30ms"},
    "pipeline-slow-links": {"zero bubble, links 0, 3, 6 30ms"},
}
"""The rows with published parameters whose error is above 5 %; each table explains its own."""


def test_there_is_a_table_of_every_experiment() -> None:
    used = {table.experiment for table in TABLES.values()}
    packaged = {each.name for each in (FOLDER.root / "experiments").iterdir()}
    assert used == packaged


@pytest.mark.parametrize("name", TABLES)
def test_a_table_names_cases_of_its_experiment_and_its_source(name: str) -> None:
    table = TABLES[name]
    text = FOLDER.experiment(table)
    assert text.startswith("# "), "the experiment states its assumptions first"
    cases = {case.name for case in read_experiment(text, table.experiment).cases}
    named = {row.case for row in table.rows} | {row.against for row in table.rows} - {None}
    assert named <= cases
    assert table.source
    assert table.explanation.strip()
    labels = [row.label for row in table.rows]
    assert len(set(labels)) == len(labels)


@cache
def compared(name: str) -> Comparison:
    return compare(TABLES[name], FOLDER)


def deviations(name: str) -> set[str]:
    return {each.row.label for each in compared(name).rows if each.deviates}


@pytest.mark.parametrize("name", QUICK)
def test_figures_with_published_parameters_are_close(name: str) -> None:
    assert deviations(name) == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(TABLES) - set(QUICK)))
def test_the_other_tables_deviate_where_they_say(name: str) -> None:
    assert deviations(name) == DEVIATIONS.get(name, set())


def test_the_published_order_takes_the_published_times() -> None:
    rows = {each.row.label: each for each in compared("zero-bubble-order").rows}
    for delay, time_ms in (("0ms", 390), ("10ms", 400), ("20ms", 440)):
        row = rows[f"zero bubble, first link {delay}"]
        assert (row.ours, row.row.published, row.error) == (time_ms, time_ms, 0)
    assert rows["auto within 8 activations, first link 20ms"].error is None


def page_rows(name: str) -> dict[str, list[str]]:
    """Return the cells of a table of docs/reproduce.md, by the name of the row."""
    text = (Path(__file__).parents[3] / "docs" / "reproduce.md").read_text()
    section = text.partition(f"\n### {name}\n")[2].partition("\n#")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines[2:]]
    return {label: rest for label, *rest in cells}


@pytest.mark.parametrize("name", TABLES)
def test_the_page_has_every_row_and_its_published_figure(name: str) -> None:
    rows = page_rows(name)
    assert list(rows) == [row.label for row in TABLES[name].rows]
    for row in TABLES[name].rows:
        published = "" if row.published is None else f"{row.published:.4g} {row.unit}"
        assert rows[row.label][0] == published


@pytest.mark.parametrize(
    "name", [*QUICK, pytest.param("pipeline-last-link", marks=pytest.mark.slow)]
)
def test_the_page_has_the_figures_that_are_computed(name: str) -> None:
    rows = page_rows(name)
    for each in compared(name).rows:
        error = "" if each.error is None else f"{100 * each.error:+.1f} %"
        assert rows[each.row.label][1:3] == [f"{each.ours:.4g} {each.row.unit}", error]

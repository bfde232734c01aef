"""The packaged tables: every one is complete, and figures with published parameters are close."""

from functools import cache, partial
from pathlib import Path

import pytest

from slackline.reproduce import Comparison, Folder, compare
from slackline.sim import read_experiment
from slackline.units import show_number

FOLDER = Folder()
TABLES = {table.name: table for table in FOLDER.tables()}
QUICK = ("zero-bubble-order", "aggregation-100-mb", "aggregation-circuit")
"""The tables that are simulated in every run of the tests."""
PHASES = (
    "link 2 30ms",
    "links 0, 5 40ms",
    "link 6 20ms",
    "links 2, 3, 6 50ms",
    "link 5 60ms",
    "links 1, 6 60ms",
    "links 0, 4 20ms",
    "links 0, 1, 2 40ms",
    "links 4, 5 50ms",
    "after the failure, no slow link",
)
DEVIATIONS = {
    "job-phases": {f"adaptation and delegation, {phase}" for phase in PHASES},
    "job-with-crash": {"adaptation and delegation"},
    "pipeline-14b": {
        "adaptation and delegation, last link 60ms",
        "delegation, no slow link, iterations 11 to 15",
    },
    "pipeline-14b-slow-links": {
        "zero bubble, links 0, 3, 6 30ms",
        "adaptation and delegation, links 0, 3, 6 30ms",
    },
    "pipeline-30b": {
        "zero bubble, last link 30ms",
        "delegation, first link 30ms",
        "delegation, first link 60ms",
        "delegation, last link 30ms",
        "delegation, last link 60ms",
        "adaptation and delegation, first link 60ms",
        "adaptation and delegation, last link 30ms",
        "adaptation and delegation, last link 60ms",
        "delegation, no slow link",
        "delegation, no slow link, iterations 11 to 15",
    },
    "pipeline-60b": {
        "delegation, first link 60ms",
        "delegation, last link 60ms",
        "adaptation and delegation, first link 60ms",
        "adaptation and delegation, last link 30ms",
        "adaptation and delegation, last link 60ms",
        "delegation, no slow link",
    },
    "pipeline-changing-links": {
        "1F1B, 50 to 100 ms",
        "zero bubble, 100 to 200 ms",
        "zero bubble, 200 to 400 ms",
    },
    "pipeline-last-link": {"adaptation and delegation, last link 60ms"},
    "pipeline-on-a-lab": {
        "adaptation, last link 0ms",
        "ready within 8 activations, all links 60ms",
        "ready within 8 activations, all links redrawn",
    },
    "pipeline-on-a-lab-1-mib": {"fixed zero bubble", "ready within 8 activations"},
    "pipeline-parts": {
        "zero bubble, last link 30ms",
        "adaptation and delegation, last link 30ms",
    },
}
"""The rows with published parameters whose error is above 5 %; each table explains its own."""


read_of = partial(read_experiment, folder=FOLDER.experiments)


def test_there_is_a_table_of_every_experiment() -> None:
    used = {table.experiment for table in TABLES.values()}
    packaged = {each.name for each in FOLDER.experiments.iterdir() if "toml" in each.name}
    assert used == packaged


@pytest.mark.parametrize("name", TABLES)
def test_a_table_names_cases_of_its_experiment_and_its_source(name: str) -> None:
    table = TABLES[name]
    text = FOLDER.experiment(table)
    assert text.startswith("# "), "the experiment states its assumptions first"
    cases = {case.name for case in read_of(text, table.experiment).cases}
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


def page_rows(name: str) -> dict[str, dict[str, str]]:
    """Return the cells of the tables of a section of docs/reproduce.md, by row and by column."""
    text = (Path(__file__).parents[3] / "docs" / "reproduce.md").read_text()
    section = text.partition(f"\n### {name}\n")[2].partition("\n#")[0]
    found: dict[str, dict[str, str]] = {}
    head: list[str] = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if line.startswith("|  |"):
            head = cells
        elif line.startswith("| "):
            found[cells[0]] = dict(zip(head, cells, strict=True))
    return found


@pytest.mark.parametrize("name", TABLES)
def test_the_page_has_every_row_and_its_published_figure(name: str) -> None:
    rows = page_rows(name)
    assert set(rows) == {row.label for row in TABLES[name].rows}
    for row in TABLES[name].rows:
        published = "" if row.published is None else f"{show_number(row.published)} {row.unit}"
        assert rows[row.label].get("published", "") == published
        average = rows[row.label].get("average", "").partition(" ")[0]
        assert average == ("" if row.average is None else show_number(row.average))


@pytest.mark.parametrize(
    "name", [*QUICK, pytest.param("pipeline-last-link", marks=pytest.mark.slow)]
)
def test_the_page_has_the_figures_that_are_computed(name: str) -> None:
    rows = page_rows(name)
    for each in compared(name).rows:
        cells = rows[each.row.label]
        error = "" if each.error is None else f"{100 * each.error:+.1f} %"
        assert cells["ours"] == f"{show_number(each.ours)} {each.row.unit}"
        assert cells.get("error", "") == error


def test_rows_that_miss_come_first_and_the_fitted_rows_stand_apart() -> None:
    found = compared("pipeline-parts")
    assert [each.row.label for each in found.predicted] == [
        "zero bubble, last link 30ms",
        "adaptation and delegation, last link 30ms",
        "delegation, last link 30ms",
    ]
    assert [each.deviates for each in found.predicted] == [True, True, False]
    assert [each.row.label for each in found.fitted] == ["no slow link"]
    assert len(found.predicted + found.fitted + found.unpublished) == len(found.rows)


SMALL = {f"pipeline-{each}" for each in ("7b", "14b", "7b-slow-links", "14b-slow-links")}
GROUPS = {
    "delegation and adaptation, 140 B": ({"job-phases"}, True),
    "delegation and adaptation, 30 B and 60 B": ({"pipeline-30b", "pipeline-60b"}, True),
    "delegation and adaptation, 7 B and 14 B": (SMALL | {"pipeline-last-link"}, True),
    "1F1B and zero bubble, 30 B and 60 B": ({"pipeline-30b", "pipeline-60b"}, False),
    "1F1B and zero bubble, 7 B and 14 B": (SMALL | {"pipeline-last-link"}, False),
    "1F1B, 140 B": ({"job-phases"}, False),
    "our own pipelines, messages of 1 MiB": ({"pipeline-on-a-lab-1-mib"}, False),
    "delegation and adaptation, delays that change, 7 B": ({"pipeline-changing-links"}, True),
    "1F1B and zero bubble, delays that change, 7 B": ({"pipeline-changing-links"}, False),
}
"""The groups of predicted rows of the page: their tables, and whether messages are delegated."""


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_the_page_has_the_mean_and_the_worst_error_of_each_group(group: str) -> None:
    tables, delegated = GROUPS[group]
    errors = [
        100 * abs(each.error or 0)
        for name in tables
        for each in compared(name).predicted
        if ("delegation" in each.row.case) == delegated
    ]
    mean, worst = sum(errors) / len(errors), max(errors)
    text = (Path(__file__).parents[3] / "docs" / "reproduce.md").read_text()
    assert f"| {group} | {len(errors)} | {mean:.1f} % | {worst:.1f} %: " in text


@pytest.mark.slow
def test_the_page_counts_the_predicted_rows_that_are_close() -> None:
    rows = [each for name in TABLES for each in compared(name).predicted]
    close = sum(not each.deviates for each in rows)
    text = (Path(__file__).parents[3] / "docs" / "reproduce.md").read_text()
    assert f"{close} of {len(rows)} predicted figures are within 5 %" in text

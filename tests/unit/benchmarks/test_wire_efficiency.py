"""Tests of the series of allreduces in which a NIC is cut: its figures, its plot, its table."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benchmark_modules import modules_of

ROOT = Path(__file__).parents[3]
RECORD = ROOT / "benchmarks" / "wire-efficiency" / "failover.json"
FIGURE = ROOT / "docs" / "plots" / "failover.svg"
NAMES = {"slackline over TCP": "slackline tcp", "gloo": "gloo"}
"""The systems' names in the table of the page, with their names in the record."""


@pytest.fixture(scope="module")
def benchmark_of_wires() -> Iterator[ModuleType]:
    with modules_of("wire-efficiency", "series", "plot") as found:
        yield found


@pytest.fixture
def series(benchmark_of_wires: ModuleType) -> Any:
    """Return allreduces of 1 MB: one each 10 ms, each 20 ms while a NIC is down, then 10 ms."""
    ended = [10.0 * (k + 1) for k in range(6)]
    ended += [ended[-1] + 20.0 * (k + 1) for k in range(8)]
    ended += [ended[-1] + 10.0 * (k + 1) for k in range(5)]
    return benchmark_of_wires.series.Series(
        system="gloo",
        nbytes=10**6,
        down_ms=60.0,
        up_ms=220.0,
        began_ms=[0.0, *ended[:-1]],
        ended_ms=ended,
    )


def test_the_throughput_is_that_of_the_operations_that_ended_in_the_time(series: Any) -> None:
    assert (series.before, series.while_down, series.after) == (100.0, 50.0, 100.0)
    assert series.longest_pause_ms == 20.0


def test_a_step_of_the_figure_spans_four_operations_and_no_change(series: Any) -> None:
    edges, rates = series.steps()
    assert edges == [0.0, 0.06, 0.14, 0.22, 0.27]
    assert rates == [100.0, 50.0, 50.0, 100.0]


def test_a_series_is_the_same_when_it_is_read_from_its_row(
    benchmark_of_wires: ModuleType, series: Any
) -> None:
    row = json.loads(json.dumps(series.row({"what": "a series"}).as_json()))
    assert row["what"] == "a series"
    assert benchmark_of_wires.series.Series.of_row(row) == series


def test_a_report_without_a_series_cannot_be_drawn(benchmark_of_wires: ModuleType) -> None:
    with pytest.raises(ValueError, match="the report has no series: run the benchmark with"):
        benchmark_of_wires.plot.series_of({"rows": [{"what": "plain TCP"}]})


def test_the_figure_of_a_cut_shows_the_recorded_series(benchmark_of_wires: ModuleType) -> None:
    """Compare figure and record; after a new record, `make plots` draws the figure."""
    plot, report = benchmark_of_wires.plot, json.loads(RECORD.read_text())
    found = re.search(r"<dc:description>(.*)</dc:description>", FIGURE.read_text())
    assert found is not None
    assert json.loads(found[1].replace("&quot;", '"')) == plot.shown(plot.series_of(report))


def test_the_table_of_a_cut_has_the_figures_of_the_recorded_series(
    benchmark_of_wires: ModuleType,
) -> None:
    plot = benchmark_of_wires.plot
    lines = (ROOT / "docs" / "benchmarks.md").read_text().splitlines()
    (head,) = [at for at, line in enumerate(lines) if line.startswith("| MB/s, a NIC is cut")]
    rows = [
        [cell.strip("* ") for cell in line.strip("|").split("|")] for line in lines[head + 2 :][:2]
    ]
    expected = {
        each.system: [
            *(f"{value:.1f}" for value in (each.before, each.while_down, each.after)),
            f"{each.longest_pause_ms / 1e3:.2f} s",
        ]
        for each in plot.series_of(json.loads(RECORD.read_text()))
    }
    assert {NAMES[name]: cells for name, *cells in rows} == expected

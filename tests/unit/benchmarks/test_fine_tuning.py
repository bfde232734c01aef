"""Tests of the fine-tuning benchmark: the time to a loss, the cut, the targets, the plot."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benchmark_modules import modules_of

ROOT = Path(__file__).parents[3]
RECORDS = ROOT / "benchmarks" / "fine-tuning-time"
FIGURE = ROOT / "docs" / "plots" / "fine-tuning.svg"
S = 1_000_000_000


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    with modules_of("fine-tuning-time", "cases", "jobs", "results", "plot") as found:
        yield found


def job(benchmark: ModuleType, *steps_s: float, since_s: float | None = None) -> Any:
    """Return a job whose first step ends at second 0, and the others after `steps_s` each."""
    ended = [0]
    for step_s in steps_s:
        ended.append(ended[-1] + round(step_s * S))
    return benchmark.jobs.Job(
        ended_ns=ended,
        losses=[],
        causes=[] if since_s is None else ["link 0-1 on rail 1: it is cut"],
        since_ns=[] if since_s is None else [round(since_s * S)],
    )


def test_the_loss_is_reached_by_the_mean_of_ten_steps(benchmark: ModuleType) -> None:
    results = benchmark.results.Results()
    results.curves["fp32"] = [2.6] * 20 + [2.4] * 10
    assert results.steps_to_loss("ddp") == 25
    assert results.steps_to_loss("bf16") is None
    results.curves["bf16"] = [2.6] * 9 + [1.0]
    assert results.steps_to_loss("bf16") == 10


def test_the_time_to_the_loss_is_that_of_all_steps(benchmark: ModuleType) -> None:
    results, cases = benchmark.results.Results(), benchmark.cases
    results.curves["fp32"] = [2.6] * 20 + [2.4] * 10
    results.record(200, cases.GLOO, job(benchmark, 9, 6, 5, 5, 7), warm_up=2)
    results.record(200, cases.GLOO, job(benchmark, 9, 8, 8, 8, 8), warm_up=2)
    assert results.steps_s[200, cases.GLOO.name] == [[6, 5, 5, 7], [8, 8, 8, 8]]
    assert results.minutes(200, cases.GLOO) == pytest.approx(25 * 7.5 / 60)


def test_a_cut_divides_the_run_into_two_rates(benchmark: ModuleType) -> None:
    results, cases = benchmark.results.Results(), benchmark.cases
    results.curves["fp32"] = [2.6] * 20 + [2.4] * 10
    cut = job(benchmark, 9, 3, 3, 3, 5, 6, 6, since_s=19)
    results.record(200, cases.CUT, cut, warm_up=2)
    assert results.steps_s[200, cases.CUT.name] == [[3, 3, 3]]
    assert (results.cut_s[200], results.after_s[200]) == ([5], [6, 6])
    assert results.minutes(200, cases.CUT) == pytest.approx((12 * 3 + 5 + 12 * 6) / 60)
    targets = {each.name: each.measured for each in results.targets()}
    assert targets["200 Mbit/s: step with the cut / step over one NIC"] == pytest.approx(5 / 6)


@pytest.mark.parametrize("since_s", [None, 1, 40])
def test_a_cut_outside_of_the_measured_steps_is_an_error(
    benchmark: ModuleType, since_s: float | None
) -> None:
    results, cases = benchmark.results.Results(), benchmark.cases
    with pytest.raises(RuntimeError, match="the cut is at step"):
        results.record(200, cases.CUT, job(benchmark, 9, 3, 3, 3, 5, 6, since_s=since_s), warm_up=2)


def test_without_measurements_every_row_has_its_reason(benchmark: ModuleType) -> None:
    results, cases = benchmark.results.Results(), benchmark.cases
    for part in cases.PARTS:
        names = ("fp32", "bf16") if part == "curve" else [each.name for each in cases.CONTESTANTS]
        for name in names:
            results.skipped[part, name] = "transformers is not installed"
    assert {row.skipped for row in results.rows()} == {"transformers is not installed"}
    assert {each.met for each in results.targets()} == {None}
    assert results.tables() == []


def recorded(name: str) -> Any:
    return json.loads((RECORDS / f"{name}.json").read_text())


def test_the_figure_shows_the_records(benchmark: ModuleType) -> None:
    """Compare the figure with the records; `make plots` draws it after a change of them."""
    description = re.search(r"<dc:description>(.*?)</dc:description>", FIGURE.read_text(), re.S)
    assert description is not None
    shown = json.loads(description[1].replace("&quot;", '"'))
    assert shown == benchmark.plot.shown(recorded("curve"), recorded("lab-200m"))


@pytest.mark.parametrize(("part", "rate"), [("lab-200m", 200), ("lab-1g", 1000)])
def test_the_page_has_the_minutes_of_the_records(
    benchmark: ModuleType, part: str, rate: int
) -> None:
    results, cases = benchmark.results.Results(), benchmark.cases
    results.take_curves(recorded("curve")["rows"])
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    minutes = {each: results.steps_to_loss(each.method) for each in cases.CONTESTANTS}
    for row in recorded(part)["rows"]:
        if "step_s" not in row:
            continue
        each = next(each for each in cases.CONTESTANTS if each.name == row["contestant"])
        key = rate, each.name
        results.steps_s[key] = [[row["step_s"]]]
        if each.cut:
            results.cut_s[rate], results.after_s[rate] = [row["cut_step_s"]], [row["after_s"]]
        assert minutes[each] is not None
        assert re.search(rf"\| {row['step_s']:.3g}0? s", page), each
        found = results.minutes(rate, each)
        assert found is not None
        assert re.search(rf"\| {found:.3g}0? \|", page) or f"| {found:.1f} |" in page, (each, found)

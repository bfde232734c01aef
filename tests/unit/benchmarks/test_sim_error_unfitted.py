"""Tests of the targets of sim-error's part "not-fitted": rows that no parameter was fitted to."""

from collections.abc import Iterator
from types import ModuleType

import pytest
from benchmark_modules import modules_of

from slackline.reproduce import ComparedRow, PublishedRow


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules by name."""
    with modules_of("sim-error", "cases", "unfitted") as found:
        yield found


def row(label: str, average: float, standard_error: float, ours: float) -> ComparedRow:
    published = PublishedRow(
        label=label,
        case=label,
        figure="time_ps",
        against=None,
        derived="",
        published=round(average, -1),
        average=average,
        standard_error=standard_error,
        given=True,
        unit="ms",
    )
    return ComparedRow(row=published, ours=ours)


def predicted(benchmark: ModuleType, *rows: ComparedRow) -> list[object]:
    return [benchmark.unfitted.Predicted(table="t", row=each) for each in rows]


def test_an_error_within_the_standard_errors_counts_in_the_mean_alone(
    benchmark: ModuleType,
) -> None:
    found = predicted(
        benchmark,
        row("noisy", 1000, 150, 1290),
        row("close", 1000, 1, 990),
        row("far", 1000, 10, 860),
    )
    mean, worst, own = benchmark.unfitted.targets_of_predictions(found)
    assert own.met is None
    assert (mean.target, mean.measured, mean.met) == (6, pytest.approx(44 / 3), False)
    assert (worst.target, worst.measured, worst.met) == (15, pytest.approx(14), True)
    noise = predicted(benchmark, row("noisy", 1000, 150, 1290))
    assert benchmark.unfitted.targets_of_predictions(noise)[1].measured == 0


def test_without_rows_nothing_is_measured(benchmark: ModuleType) -> None:
    assert [each.met for each in benchmark.unfitted.targets_of_predictions([])] == [None] * 3


def test_the_projects_own_rows_have_a_target_of_their_own(benchmark: ModuleType) -> None:
    unfitted = benchmark.unfitted
    found = [
        unfitted.Predicted(table=unfitted.OWN, row=row("ours", 100, 1, 104)),
        unfitted.Predicted(table="pipeline-30b", row=row("theirs", 100, 1, 110)),
    ]
    mean, worst, own = unfitted.targets_of_predictions(found)
    assert (mean.measured, worst.measured) == (pytest.approx(10), pytest.approx(10))
    assert (own.target, own.measured, own.met) == (5, pytest.approx(4), True)


def test_a_row_of_the_report_has_both_figures_and_both_errors(benchmark: ModuleType) -> None:
    (found,) = predicted(benchmark, row("far", 1004, 10, 860))
    report = found.report_row()  # type: ignore[attr-defined]
    assert report.labels == {"part": "not-fitted", "table": "t", "case": "far"}
    assert report.values == {
        "published_ms": 1000,
        "average_ms": 1004,
        "standard_error_ms": 10,
        "simulated_ms": 860,
        "error_percent": -14.34,
        "standard_errors": -14.4,
    }


def test_rows_of_delegation_and_all_own_rows_are_judged(benchmark: ModuleType) -> None:
    judged = benchmark.unfitted.judged
    assert judged("pipeline-30b", row("adaptation and delegation, last link 30ms", 1, 1, 1))
    assert not judged("pipeline-30b", row("zero bubble, last link 30ms", 1, 1, 1))
    assert judged(benchmark.unfitted.OWN, row("fixed zero bubble", 1, 1, 1))

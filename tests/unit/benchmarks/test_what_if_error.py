"""Tests of the what-if-error benchmark's logic: the changes, the errors, the targets."""

from collections.abc import Iterator
from types import ModuleType

import pytest
from benchmark_modules import modules_of

from slackline import predict


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules by name."""
    with modules_of("what-if-error", "cases", "main") as found:
        yield found


def prediction(p50_ms: float, p95_ms: float) -> predict.Prediction:
    return predict.Prediction(
        p50_ns=round(p50_ms * 1e6),
        p95_ns=round(p95_ms * 1e6),
        exposed_ns=0,
        reason="",
        warnings=(),
    )


def measured(*walls_ms: int) -> predict.Run:
    nothing = predict.Computation(before_ns=0, forward_ns=0, backward_ns=(), after_ns=0)
    return predict.Run(
        name="run",
        ranks=2,
        hosts=2,
        groups=(),
        steps=tuple(
            predict.Step(wall_ns=wall * 10**6, exposed_ns=0, busy_ns=0, ranks=(nothing,) * 2)
            for wall in walls_ms
        ),
        link=predict.Link(rate_bps=1, one_way_ns=0),
    )


def test_each_change_differs_from_the_first_job_by_itself(benchmark: ModuleType) -> None:
    """Compare each change's text with the job that is measured for it."""
    for case in benchmark.cases.CASES:
        setup, base = case.setup, benchmark.cases.BASE
        wanted: dict[str, object] = dict(vars(base))
        for change in predict.parse_changes(case.change):
            match change:
                case predict.Rate():
                    wanted["rate_bps"] = change.rate_bps
                case predict.PlanChange():
                    wanted["plan"] = change.name
                case predict.Hosts():
                    wanted["hosts"] = change.count
                case predict.Nics():
                    wanted["nics"] = change.count
                case predict.Bucket():
                    wanted["group_bytes"] = change.nbytes
                case predict.Compute():
                    wanted["computing"] = change.factor
        assert vars(setup) == wanted, case.change
    assert len(benchmark.cases.CASES) >= 20


def test_an_error_is_that_of_the_predicted_median(benchmark: ModuleType) -> None:
    main = benchmark.main
    rows = [
        main.row_of("as measured", prediction(10, 11), measured(20, 20, 20), ""),
        main.row_of("nics 2", prediction(10.4, 10.6), measured(9, 10, 30), ""),
        main.row_of("hosts 3", prediction(8, 9), measured(10, 10), ""),
        main.row_of("hosts 5", None, None, "left out"),
    ]
    assert [row.values.get("error_percent") for row in rows] == [-50, 4, -20, None]
    assert rows[3].skipped == "left out"
    within, below = main.targets_of(rows)
    assert (within.measured, below.measured) == (50, 50)
    assert (within.met, below.met) == (False, False)


def test_without_a_lab_nothing_is_measured(benchmark: ModuleType) -> None:
    rows = [benchmark.main.row_of("as measured", None, None, "no root")]
    assert [target.met for target in benchmark.main.targets_of(rows)] == [None, None]

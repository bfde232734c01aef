"""Tests of the training-step benchmark's logic: bucket sizes, lengths of turns, ratios, targets."""

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from _harness.usage import Usage
from benchmark_modules import modules_of


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules by name."""
    with modules_of("training-step", "calls", "cases", "results", "targets") as found:
        yield found


def usage(step_s: float, user_s: float = 0.02) -> Usage:
    return Usage(
        seconds=step_s, user_s=user_s, system_s=0.001, voluntary=10, involuntary=1, idle_s=0.0
    )


def measured(benchmark: ModuleType, cell_name: str, step_ms: dict[str, list[float]]):
    """Return the results of a cell from the step times of each contestant by round. Rank 0 is a
    little faster."""
    cases = benchmark.cases
    (cell,) = cases.cells_of(cell_name, quick=False)
    known = {
        "alone": cases.ALONE,
        "PCCO": cases.PCCO,
        "gloo": cases.DDP_DEFAULT["gloo"],
        "gloo best": cases.Contestant(method=cases.Method.DDP, backend="gloo", bucket_mb=5),
        "ours best": cases.Contestant(method=cases.Method.DDP, backend="slackline", bucket_mb=2),
        "fsdp gloo": cases.FSDP2["gloo"],
        "fsdp ours": cases.FSDP2["slackline"],
    }
    found = benchmark.results.Results()
    for name, rounds in step_ms.items():
        for milliseconds in rounds:
            ranks = [usage(milliseconds * share / 1e3) for share in (0.9, 1.0)]
            found.record(cell, known[name], ranks)
        found.record_calls(cell, known[name], [300, 301])
    if "PCCO" in step_ms:
        found.record_groups(cell, known["PCCO"], "groups of 64 KiB: 20.1 ms a step")
    return found, cell, known


STEPS_MS = {
    "PCCO": [20.0, 22.0, 21.0],
    "gloo": [25.2, 24.0, 30.0],
    "gloo best": [20.0, 19.0, 20.5],
    "ours best": [21.0, 21.0, 21.0],
    "fsdp gloo": [60.0],
    "fsdp ours": [40.0],
    "alone": [18.0],
}


def test_buckets_that_hold_the_whole_model_are_tried_once(benchmark: ModuleType) -> None:
    def sizes(parameter_bytes: int, *, quick: bool = False) -> list[int]:
        found = benchmark.cases.candidates("gloo", parameter_bytes, quick=quick)
        return [contestant.bucket_mb for contestant in found]

    assert sizes(600_000) == [1]
    assert sizes(1 << 20) == [1]
    assert sizes((1 << 20) + 1) == [1, 2]
    assert sizes(6 << 20) == [1, 2, 5, 10]
    assert sizes(48 << 20) == [1, 2, 5, 10, 25]
    assert sizes(48 << 20, quick=True) == [1, 25]


def test_the_best_bucket_has_the_smallest_median_and_not_the_smallest_time(
    benchmark: ModuleType,
) -> None:
    one, two, five = benchmark.cases.candidates("gloo", 4 << 20, quick=False)
    times = {one: [3.0, 3.0, 3.0], two: [1.0, 4.0, 4.0], five: [2.5, 9.0, 2.5]}
    assert benchmark.cases.fastest(times) == five
    assert benchmark.cases.fastest({one: [1.0], two: [1.0]}) == one


def test_a_turn_lasts_half_a_second_unless_its_steps_are_slow_or_many(
    benchmark: ModuleType,
) -> None:
    def found(step_s: float, *, quick: bool = False) -> tuple[int, int, int, int]:
        how = benchmark.cases.lengths(step_s, quick=quick)
        return how.warm_up, how.steps, how.selection_rounds, how.rounds

    assert found(0.001) == (3, 25, 3, 11)
    assert found(0.05) == (3, 10, 3, 11)
    assert found(0.3) == (2, 2, 1, 5)
    assert found(4.0) == (1, 2, 1, 5)
    assert found(0.05, quick=True) == (3, 3, 1, 2)


def test_a_part_is_a_network_or_a_cell(benchmark: ModuleType) -> None:
    def names(part: str | None, *, quick: bool = False) -> list[str]:
        return [cell.name for cell in benchmark.cases.cells_of(part, quick=quick)]

    assert names("lab-1g/gpt") == ["lab-1g/gpt"]
    assert names("host-4") == ["host-4/digits", "host-4/gpt", "host-4/layers", "host-4/tensors"]
    assert names("lab-1g", quick=True) == names("lab-1g")
    assert names(None, quick=True) == ["host-2/gpt"]
    assert len(names(None)) == 16
    assert all(names(part) for part in benchmark.cases.PARTS)


def test_a_step_is_the_slowest_ranks_and_a_ratio_compares_medians(benchmark: ModuleType) -> None:
    results, cell, known = measured(benchmark, "host-2/gpt", STEPS_MS)
    assert results.steps(cell, known["PCCO"]) == [0.02, 0.022, 0.021]
    assert results.ratio(cell, known["gloo"], known["PCCO"]) == 1.2
    assert results.ratio(cell, None, known["PCCO"]) is None
    missing = benchmark.cases.DDP_DEFAULT["slackline"]
    assert results.ratio(cell, missing, known["PCCO"]) is None


def test_a_row_has_the_spread_and_the_processor_time_of_all_ranks(benchmark: ModuleType) -> None:
    results, *_ = measured(benchmark, "host-2/gpt", STEPS_MS)
    (row,) = [row for row in results.rows() if row.labels["contestant"] == "PCCO"]
    assert row.as_json() == {
        "network": "host-2",
        "ranks": 2,
        "model": "gpt",
        "contestant": "PCCO",
        "groups": "groups of 64 KiB: 20.1 ms a step",
        "step_ms": 21.0,
        "step_min_ms": 20.0,
        "step_max_ms": 22.0,
        "over_pcco": 1.0,
        "user_ms": 40.0,
        "system_ms": 2.0,
        "voluntary": 20,
        "involuntary": 2,
        "python_calls": 601,
        "rounds": 3,
    }


def test_the_contestants_that_beat_pcco_come_first_and_the_references_last(
    benchmark: ModuleType,
) -> None:
    results, *_ = measured(benchmark, "host-2/gpt", STEPS_MS)
    assert [row.labels["contestant"] for row in results.rows()] == [
        "DDP over gloo, best bucket",
        "DDP over slackline, best bucket",
        "DDP over gloo, default bucket",
        "FSDP2 over slackline",
        "FSDP2 over gloo",
        "alone",
        "PCCO",
    ]
    assert results.rows()[0].labels["bucket_mb"] == 5
    assert results.table().row_count == 7


def test_targets_follow_from_the_medians_and_name_their_cell(benchmark: ModuleType) -> None:
    results, *_ = measured(benchmark, "host-2/digits", STEPS_MS)
    found = {target.name: target for target in benchmark.targets.targets(results)}
    judged = {
        name: (each.measured, each.met) for name, each in found.items() if each.met is not None
    }
    assert judged == {
        "host-2/digits: DDP over gloo, best bucket / PCCO": (0.952, False),
        "host-2/digits: PCCO / DDP over slackline, best bucket": (1.0, True),
        "host-2/digits: FSDP2 over gloo / FSDP2 over slackline": (1.5, True),
        "host-2/digits: DDP over gloo, default bucket / PCCO": (1.2, True),
    }
    assert len(found) == 16 * 3 + 2
    assert {each.measured for name, each in found.items() if name not in judged} == {None}


def test_bounds_differ_between_one_host_and_a_lab_and_for_many_tensors(
    benchmark: ModuleType,
) -> None:
    targets = benchmark.targets.targets(benchmark.results.Results())
    bounds = {target.name: target.target for target in targets}
    assert bounds["host-4/gpt: FSDP2 over gloo / FSDP2 over slackline"] == 1.3
    assert bounds["lab-200m/gpt: FSDP2 over gloo / FSDP2 over slackline"] == 1.0
    assert bounds["host-2/layers: PCCO / DDP over slackline, best bucket"] == 1.02
    assert bounds["host-2/tensors: PCCO / DDP over slackline, best bucket"] == 1.05
    assert bounds["host-2/digits: DDP over gloo, default bucket / PCCO"] == 1.08
    assert bounds["host-4/digits: DDP over gloo, default bucket / PCCO"] == 1.15


def test_skipped_cells_are_rows_with_their_reason(benchmark: ModuleType) -> None:
    results, *_ = measured(benchmark, "host-2/gpt", STEPS_MS)
    for cell in benchmark.cases.cells_of("lab-1g", quick=False)[:2]:
        results.skip(cell, "a lab needs root")
    assert [row.skipped for row in results.rows()[-2:]] == ["a lab needs root"] * 2
    assert results.notes() == ["skipped: lab-1g/digits, lab-1g/gpt: a lab needs root"]


def test_functions_written_in_python_are_counted(benchmark: ModuleType) -> None:
    def leaf(_number: int) -> int:
        return len("built in")

    def work() -> None:
        list(map(leaf, range(5)))

    before = sys.getprofile()
    assert benchmark.calls.python_calls(work) == 6
    assert benchmark.calls.python_calls(lambda: None) == 1
    assert sys.getprofile() is before

"""Tests of the training-step benchmark's logic: bucket sizes, lengths of turns, ratios, targets."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

import pytest
from _harness.usage import Usage
from benchmark_modules import modules_of


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules by name."""
    with modules_of("training-step", "calls", "cases", "page", "results", "targets") as found:
        yield found


def usage(step_s: float, user_s: float = 0.02) -> Usage:
    return Usage(
        seconds=step_s, user_s=user_s, system_s=0.001, voluntary=10, involuntary=1, idle_s=0.0
    )


def chosen(benchmark: ModuleType, **changed: object):
    """Return a choice of PCCO's trial, with some of its attributes changed."""
    choice = benchmark.cases.Choice(
        result="groups of 64 KiB and one update: 20.1 ms a step",
        group_bytes=64 << 10,
        deferred=False,
        parameter_bytes=1 << 20,
    )
    return replace(choice, **changed)


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
        "ours best": cases.Contestant(
            method=cases.Method.DDP, backend="slackline", bucket_mb=2, batched_copy=True
        ),
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
        found.record_choice(cell, known["PCCO"], chosen(benchmark))
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


def test_further_settings_are_tried_at_the_best_bucket_size(benchmark: ModuleType) -> None:
    best = benchmark.cases.candidates("gloo", 6 << 20, quick=False)[2]

    def settings(*, batched_copy: bool = True, few: bool = False) -> list[str]:
        found = benchmark.cases.with_settings(best, batched_copy=batched_copy, few=few)
        assert {(each.backend, each.bucket_mb) for each in found} == {("gloo", 5)}
        return [each.settings for each in found]

    assert settings() == [
        "5 MB",
        "5 MB, batched copies",
        "5 MB, static graph",
        "5 MB, static graph, batched copies",
    ]
    assert settings(batched_copy=False) == ["5 MB", "5 MB, static graph"]
    assert settings(few=True) == ["5 MB", "5 MB, static graph, batched copies"]
    assert settings(batched_copy=False, few=True) == ["5 MB", "5 MB, static graph"]


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

    assert found(0.001) == (3, 25, 3, 9)
    assert found(0.05) == (3, 10, 3, 9)
    assert found(0.3) == (2, 2, 1, 5)
    assert found(4.0) == (1, 2, 1, 5)
    assert found(0.05, quick=True) == (3, 3, 1, 2)


def test_a_part_is_a_network_or_a_cell(benchmark: ModuleType) -> None:
    def names(part: str | None, *, quick: bool = False) -> list[str]:
        return [cell.name for cell in benchmark.cases.cells_of(part, quick=quick)]

    assert names("lab-1g/gpt") == ["lab-1g/gpt"]
    assert names("host-4") == [f"host-4/{model}" for model in benchmark.cases.MODELS]
    assert names("lab-1g-4") == ["lab-1g-4/gpt", "lab-1g-4/layers"]
    assert names("lab-1g", quick=True) == names("lab-1g")
    assert names(None, quick=True) == ["host-2/gpt"]
    assert names("host-2/tiny", quick=True) == ["host-2/tiny"]
    assert len(names(None)) == 28
    assert all(names(part) for part in benchmark.cases.PARTS)


def test_fsdp2_trains_only_the_models_that_it_shards(benchmark: ModuleType) -> None:
    cases = benchmark.cases
    assert set(cases.FSDP2.values()) < set(cases.contestants("gpt"))
    assert [each.name for each in cases.contestants("clipping")] == [
        "alone",
        "DDP over slackline, default bucket",
        "DDP over gloo, default bucket",
    ]


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
        "choice": "groups of 64 KiB, one update",
        "group_bytes": 65536,
        "deferred": False,
        "trial": "groups of 64 KiB and one update: 20.1 ms a step",
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
        "rounds_ms": [20.0, 22.0, 21.0],
    }


def test_the_contestants_that_beat_pcco_come_first_and_the_references_last(
    benchmark: ModuleType,
) -> None:
    results, *_ = measured(benchmark, "host-2/gpt", STEPS_MS)
    assert [row.labels["contestant"] for row in results.rows()] == [
        "DDP over gloo, best settings",
        "DDP over slackline, best settings",
        "DDP over gloo, default bucket",
        "FSDP2 over slackline",
        "FSDP2 over gloo",
        "alone",
        "PCCO",
    ]
    first, second, *_, pcco = results.rows()
    assert (first.labels["bucket_mb"], first.labels["settings"]) == (5, "5 MB")
    assert second.labels["settings"] == "2 MB, batched copies"
    assert (second.labels["static_graph"], second.labels["batched_copy"]) == (False, True)
    table = results.table()
    assert table.row_count == 7
    assert list(table.columns[-1].cells) == [
        *("5 MB", "2 MB, batched copies", "", "", "", ""),
        pcco.labels["choice"],
    ]


def test_a_choice_names_groups_and_update(benchmark: ModuleType) -> None:
    assert str(chosen(benchmark)) == "groups of 64 KiB, one update"
    assert str(chosen(benchmark, deferred=True)) == "groups of 64 KiB"
    assert str(chosen(benchmark, group_bytes=0, deferred=True)) == "each gradient alone"
    assert str(chosen(benchmark, group_bytes=1 << 20)) == "one group, one update"


def test_targets_follow_from_the_medians_and_name_their_cell(benchmark: ModuleType) -> None:
    results, *_ = measured(benchmark, "host-2/digits", STEPS_MS)
    found = {target.name: target for target in benchmark.targets.targets(results)}
    judged = {
        name: (each.measured, each.met) for name, each in found.items() if each.met is not None
    }
    assert judged == {
        "host-2/digits: DDP over gloo, best settings / PCCO": (0.952, False),
        "host-2/digits: DDP over slackline, best settings / PCCO": (1.0, True),
        "host-2/digits: FSDP2 over gloo / FSDP2 over slackline": (1.5, True),
        "host-2/digits: DDP over gloo, default bucket / PCCO": (1.2, True),
    }
    assert len(found) == 28 * 2 + 18 + 2 + 1
    assert {each.measured for name, each in found.items() if name not in judged} == {None}


def test_bounds_differ_between_one_host_and_labs(benchmark: ModuleType) -> None:
    targets = benchmark.targets.targets(benchmark.results.Results())
    bounds = {target.name: target.target for target in targets}
    assert bounds["host-4/gpt: FSDP2 over gloo / FSDP2 over slackline"] == 1.3
    assert bounds["lab-200m/gpt: FSDP2 over gloo / FSDP2 over slackline"] == 1.0
    assert bounds["host-2/tiny: DDP over gloo, best settings / PCCO"] == 1.0
    assert bounds["host-2/tensors: DDP over slackline, best settings / PCCO"] == 0.98
    assert bounds["lab-1g/gpt: DDP over slackline, best settings / PCCO"] == 0.98
    assert bounds["lab-1g-4/gpt: DDP over slackline, best settings / PCCO"] == 1.05
    assert bounds["lab-200m/resnet: DDP over slackline, best settings / PCCO"] == 1.05
    assert bounds["host-2/digits: DDP over gloo, default bucket / PCCO"] == 1.08
    assert bounds["host-4/digits: DDP over gloo, default bucket / PCCO"] == 1.15


def test_the_share_of_faster_cells_needs_every_cell_of_one_host(benchmark: ModuleType) -> None:
    cells = [cell for cell in benchmark.cases.CELLS if cell.network.one_host]
    results = benchmark.results.Results()
    for place, cell in enumerate(cells):
        assert benchmark.targets.targets(results)[-1].measured is None
        # DDP takes 0.9 to 1.65 of PCCO's time, and the same time in the third cell.
        ours_ms = 9.0 + 0.5 * place
        found, *_ = measured(benchmark, cell.name, {"PCCO": [10.0], "ours best": [ours_ms]})
        results.turns |= found.turns
    share = benchmark.targets.targets(results)[-1]
    assert share.measured == (len(cells) - 2) / len(cells)
    assert (share.target, share.met) == (0.5, True)


def report(benchmark: ModuleType, cell_name: str, commit: str, step_ms: dict[str, list[float]]):
    """Return the JSON object of a run of one cell."""
    results, *_ = measured(benchmark, cell_name, step_ms)
    results.skip(benchmark.cases.CELLS[0], "not asked for")
    machine = {"date": "2026-11-28 11:07 UTC", "cpu": "AMD EPYC"}
    rows = [row.as_json() for row in results.rows()]
    return json.loads(json.dumps({"machine": machine, "commit": commit, "rows": rows}))


def test_the_pages_table_has_a_row_for_each_cell_and_bold_misses(benchmark: ModuleType) -> None:
    joined = benchmark.results.Results()
    joined.load(
        report(
            benchmark,
            "lab-1g-4/gpt",
            "abc",
            {"PCCO": [10.0], "gloo best": [12.0], "ours best": [10.3]},
        )
    )
    joined.load(report(benchmark, "host-2/digits", "def", STEPS_MS))
    head, rule, *rows = benchmark.page.lines(joined)
    assert head.startswith("| | DDP over gloo / PCCO, target 1.0 | DDP over slackline / PCCO")
    assert rule == "|---|---|---|---|---|---|---|---|"
    choice = "groups of 64 KiB, one update | 5 MB | 2 MB, batched copies"
    assert rows == [
        f"| 1 host, 2 ranks, digits | **0.95** | 1.00 | 1.50 | {choice} | `def`, 2026-11-28 |",
        "| lab, 4 hosts at 1 Gbit/s, GPT of 6 layers | 1.20 | **1.03** |  "
        f"| {choice} | `abc`, 2026-11-28 |",
    ]
    assert set(benchmark.page.TITLES) == set(benchmark.cases.MODELS)


def test_runs_of_parts_are_joined_into_one_table(benchmark: ModuleType) -> None:
    whole, *_ = measured(benchmark, "host-2/gpt", STEPS_MS)
    joined = benchmark.results.Results()
    joined.load(report(benchmark, "host-2/gpt", "abc", {"PCCO": [1.0], "alone": [1.0]}))
    joined.load(report(benchmark, "host-4/tiny", "abc", {"PCCO": [10.0], "ours best": [12.0]}))
    joined.load(report(benchmark, "host-2/gpt", "def", STEPS_MS))
    rows = [row.as_json() for row in joined.rows()]
    origin = {"commit": "def", "date": "2026-11-28 11:07 UTC", "cpu": "AMD EPYC"}
    assert [row for row in rows if row["model"] == "gpt"] == [
        origin | row.as_json() for row in whole.rows()
    ]
    assert {row["commit"] for row in rows if row["model"] == "tiny"} == {"abc"}
    assert {cell.name for cell in joined.cells()} == {"host-2/gpt", "host-4/tiny"}
    assert joined.table().row_count == 7 + 2
    judged = {each.name: each.measured for each in benchmark.targets.targets(joined)}
    assert judged["host-2/gpt: DDP over gloo, best settings / PCCO"] == 0.952
    assert judged["host-4/tiny: DDP over slackline, best settings / PCCO"] == 1.2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"network": "host-9", "model": "gpt", "contestant": "PCCO"},
            "a row has the cell 'host-9/gpt', which the benchmark does not have",
        ),
        (
            {"network": "host-2", "model": "gpt", "contestant": "DDP over gloo, best bucket"},
            "a row has the contestant 'DDP over gloo, best bucket', "
            "which the benchmark does not have",
        ),
    ],
)
def test_a_row_of_another_benchmark_is_refused(
    benchmark: ModuleType, row: dict[str, str], message: str
) -> None:
    report = {"machine": {"date": "", "cpu": ""}, "commit": "abc", "rows": [row]}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        benchmark.results.Results().load(report)


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

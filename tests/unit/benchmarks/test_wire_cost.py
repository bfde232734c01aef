"""Tests of the wire-cost benchmark's logic: the measured cells, costs per byte, ratios, targets."""

import os
from collections.abc import Iterator
from types import ModuleType

import pytest
from _harness.usage import Usage
from benchmark_modules import modules_of


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules by name."""
    with modules_of("wire-cost", "cases", "results", "targets") as found:
        yield found


def cell_of(benchmark: ModuleType, name: str):
    (cell,) = [cell for cell in benchmark.cases.CELLS if cell.name == name]
    return cell


def turn(benchmark: ModuleType, seconds: float, user_s: float = 0.25, softirq_s: float = 0.5):
    """Return the measurements of two ranks, of which the first is a little faster: ten operations
    within 2 s. Each core was idle for a quarter of the time."""
    idle_s = os.cpu_count() * 0.25 * seconds
    usages = [
        Usage(
            seconds=share * seconds,
            user_s=user_s,
            system_s=0.5,
            voluntary=3,
            involuntary=1,
            idle_s=share * idle_s,
        )
        for share in (0.9, 1.0)
    ]
    return benchmark.results.Turn(
        usages=usages, calls=10, softirq_s=softirq_s, window_s=2.0, packets=420
    )


def record(benchmark: ModuleType, results, cell, times: dict[str, list[float]], **costs: float):
    for name, rounds in times.items():
        for seconds in rounds:
            what = turn(benchmark, seconds, user_s=costs.get(name.replace("-", "_"), 0.25))
            results.record(cell, benchmark.cases.Contestant(name), what)
    return results


def test_processor_time_is_a_share_of_the_bytes_that_all_ranks_have_to_send(
    benchmark: ModuleType,
) -> None:
    cell = cell_of(benchmark, "loopback-4/16MiB")
    assert cell.wire_bytes == 6 * (16 << 20)
    results = record(benchmark, benchmark.results.Results(), cell, {"gloo": [2.0, 1.0, 4.0]})
    (row,) = results.rows()
    a_byte = 1e9 / cell.wire_bytes
    assert row.values["user_ns"] == pytest.approx(0.5 * a_byte, abs=1e-4)
    assert row.values["system_ns"] == pytest.approx(1.0 * a_byte, abs=1e-4)
    assert row.values["softirq_ns"] == pytest.approx(0.05 * a_byte, abs=1e-4)
    assert row.values["cpu_ns"] == pytest.approx(1.55 * a_byte, abs=1e-4)
    assert (row.values["waits"], row.values["preemptions"], row.values["packets"]) == (6, 2, 42)
    assert row.values["idle_percent"] == 25
    assert row.values["time_ms"] == 2000
    assert (row.values["time_ms_p10"], row.values["time_ms_p90"]) == (1200, 3600)
    assert row.values["rounds"] == 3
    assert "wire_percent" not in row.values


def test_soft_interrupts_without_work_are_taken_off(benchmark: ModuleType) -> None:
    cell = cell_of(benchmark, "loopback-2/1MiB")
    results = benchmark.results.Results()
    for softirq_s in (0.01, 0.03):
        idle = benchmark.results.Idle(seconds=0.2, softirq_s=softirq_s)
        results.record_idle(cell.network, idle)
    assert results.idle_softirq(cell.network) == pytest.approx(0.1)
    results.record(cell, benchmark.cases.Contestant.GLOO, turn(benchmark, 1.0, softirq_s=0.5))
    # The idle share (0.1 of 2 s) is subtracted from 0.5 s, and the rest divided by ten operations.
    assert results.rows()[0].values["softirq_ns"] == pytest.approx(
        0.03 * 1e9 / cell.wire_bytes, abs=1e-4
    )


def test_percent_of_the_wire_is_the_ideal_time_over_the_slowest_ranks(
    benchmark: ModuleType,
) -> None:
    cell = cell_of(benchmark, "lab-1g-4/100MB")
    assert cell.ideal_s == pytest.approx(1.5 * 10**8 * 8 / (1e9 * 1448 / 1514))
    results = record(benchmark, benchmark.results.Results(), cell, {"ring": [cell.ideal_s * 1.25]})
    assert results.rows()[0].values["wire_percent"] == 80


def test_those_that_beat_slackline_over_tcp_come_first_and_slackline_last(
    benchmark: ModuleType,
) -> None:
    cell = cell_of(benchmark, "loopback-2/1MiB")
    times = {"slackline-tcp": [1.0], "slackline-shm": [0.2], "gloo": [3.0], "ring": [1.5]}
    results = record(benchmark, benchmark.results.Results(), cell, times, gloo=0.05, ring=0.5)
    assert [who for _, who in results.ordered()] == [
        "gloo",  # slower, but uses less processor time
        "ring",
        "slackline-shm",
        "slackline-tcp",
    ]
    first = results.rows()[0].values
    assert first["time_over_tcp"] == 3.0
    assert first["cpu_over_tcp"] == pytest.approx(1.15 / 1.55, abs=1e-3)
    assert [table.row_count for table in results.tables()] == [4, 4]


def test_on_loopback_processor_time_and_speed_are_judged_by_gloos(benchmark: ModuleType) -> None:
    cell = cell_of(benchmark, "loopback-4/16MiB")
    times = {"slackline-tcp": [1.0, 1.0, 9.0], "gloo": [1.39, 1.39, 1.39], "ring": [0.1]}
    results = record(
        benchmark, benchmark.results.Results(), cell, times, slackline_tcp=0.1, gloo=0.6
    )
    found = {target.name: target for target in benchmark.targets.targets(results)}
    processor = found[f"{cell.name}: processor time a byte, slackline-tcp / gloo"]
    assert (processor.bound, processor.target) == ("at most", 0.75)
    assert processor.measured == pytest.approx(1.25 / 2.25, abs=1e-3)
    assert processor.met is True
    speed = found[f"{cell.name}: time, gloo / slackline-tcp"]
    assert (speed.target, speed.measured, speed.met) == (1.4, 1.39, False)
    assert found["loopback-4/100MB: time, gloo / slackline-tcp"].target == 1.3
    assert not [name for name in found if name.startswith("loopback-2") and "time," in name]


def test_in_a_lab_the_wire_is_judged_by_gloos_by_the_rings_and_by_a_bound(
    benchmark: ModuleType,
) -> None:
    cell = cell_of(benchmark, "lab-200m-2/16MiB")
    shares = {"slackline-tcp": 0.984, "gloo": 0.988, "ring": 0.985}
    times = {name: [cell.ideal_s / share] for name, share in shares.items()}
    results = record(benchmark, benchmark.results.Results(), cell, times, gloo=0.2)
    found = {target.name: target for target in benchmark.targets.targets(results)}
    wire = f"{cell.name}: percent of the wire"
    judged = {
        name.removeprefix(wire): (target.target, target.measured, target.met)
        for name, target in found.items()
        if name.startswith(wire)
    }
    assert judged == {
        ", slackline-tcp - gloo": (-0.5, -0.4, True),
        ", slackline-tcp - ring": (0.0, -0.1, False),
        "": (98.5, 98.4, False),
    }
    processor = found[f"{cell.name}: processor time a byte, slackline-tcp / gloo"]
    assert (processor.target, processor.met) == (1.0, False)


def test_each_lab_has_the_targets_of_its_rate_and_sizes(benchmark: ModuleType) -> None:
    found = benchmark.targets.targets(benchmark.results.Results())
    assert len({target.name for target in found}) == len(found) == 64
    assert {target.met for target in found} == {None}
    names = [target.name for target in found]
    assert not [name for name in names if name.startswith("lab") and "64KiB" in name]
    assert not [name for name in names if name.startswith("lab") and "1MiB: processor" in name]
    assert len([name for name in names if name.endswith("percent of the wire")]) == 6


def test_what_is_left_out_says_why(benchmark: ModuleType) -> None:
    cases = benchmark.cases
    who = cases.Contestant

    def measured(part: str | None, *only: str, quick: bool = False) -> list[str]:
        return [
            f"{cell.name} {each}"
            for cell in cases.CELLS
            for each in cases.available_on(cell.network)
            if cases.left_out(cell, each, part, only, quick=quick) is None
        ]

    assert len(measured(None)) == 8 * 6 + 24 * 5 + 12
    assert measured("loopback-2/1MiB", "gloo", "ring") == [
        "loopback-2/1MiB gloo",
        "loopback-2/1MiB ring",
    ]
    assert len(measured("lab-5g-4")) == 4 * 6
    assert measured("lab-5g-4/100MB", "openmpi", quick=True) == ["lab-5g-4/100MB openmpi"]
    assert len(measured(None, quick=True)) == 2 * 6 + 3
    cell = cell_of(benchmark, "lab-1g-2/1MiB")
    assert cases.left_out(cell, who.UDP, None, (), quick=True) == "left out by --quick"
    assert cases.left_out(cell, who.UDP, "lab-1g-4", (), quick=True) == "not asked for"
    assert who.SHM not in cases.available_on(cell.network)


def test_reasons_are_listed_once_with_what_was_left_out_for_them(benchmark: ModuleType) -> None:
    results = benchmark.results.Results()
    for cell in benchmark.cases.CELLS[:4]:
        results.skip(cell, benchmark.cases.Contestant.OPENMPI, "mpirun is not installed")
    assert {row.skipped for row in results.rows()} == {"mpirun is not installed"}
    assert results.notes()[1:] == [
        "skipped: loopback-2/64KiB openmpi, loopback-2/1MiB openmpi, loopback-2/16MiB openmpi "
        "and 1 more: mpirun is not installed"
    ]


def test_a_turn_lasts_as_long_as_it_should_within_bounds(benchmark: ModuleType) -> None:
    cases = benchmark.cases
    assert cases.calls_for(0.001, 0.4) == 400
    assert cases.calls_for(3.0, 0.4) == 1
    assert cases.calls_for(1e-9, 0.4) == cases.MOST_CALLS
    # The warm-up is a tenth of a second on the wire, but not longer than the operation itself.
    slow = cell_of(benchmark, "lab-200m-2/100MB")
    assert cases.warm_up_count(slow) * 4 == pytest.approx(
        slow.size.nbytes * 0.1 / slow.ideal_s, abs=8
    )
    small = cell_of(benchmark, "lab-5g-2/64KiB")
    assert cases.warm_up_count(small) == small.size.count
    assert cases.warm_up_count(cell_of(benchmark, "loopback-4/100MB")) == 1 << 20


def test_the_price_of_rank_order_is_the_median_over_the_labs_with_several_hosts(
    benchmark: ModuleType,
) -> None:
    any_order = benchmark.cases.Contestant.ANY_ORDER
    assert any_order.environment == {"SLACKLINE_RAILS": "tcp", "SLACKLINE_ORDER": "any"}
    networks = [
        n.name for n in benchmark.cases.NETWORKS if any_order in benchmark.cases.available_on(n)
    ]
    assert networks == ["lab-200m-4", "lab-1g-4", "lab-5g-4"]
    results = benchmark.results.Results()
    assert results.rows() == []
    for size, seconds in {"1MiB": 1.5, "16MiB": 1.1, "100MB": 0.9}.items():
        times = {"slackline-tcp": [9.0, seconds, seconds], "slackline-tcp-any": [1.0]}
        record(benchmark, results, cell_of(benchmark, f"lab-1g-4/{size}"), times)
    last = results.rows()[-1]
    assert last.labels == {
        "network": "all labs",
        "size": "all",
        "contestant": "slackline-tcp",
    }
    assert last.values == {"cells": 3, "time_over_any_order": 1.1}
    assert (
        "rank order between hosts: 1.10 times the time of any order, the median of 3 cells"
        in results.notes()
    )

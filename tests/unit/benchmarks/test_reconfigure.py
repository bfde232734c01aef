"""Tests of the figures of the benchmark reconfigure."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from benchmark_modules import modules_of


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules."""
    with modules_of("reconfigure", "cases", "performer", "results") as found:
        yield found


def turn(benchmark: ModuleType, begun: float, changed: float, first: float, *usual: float) -> Any:
    return benchmark.performer.Turn(
        begun=begun, changed=changed, first=first, warm=usual[0], usual=usual[1:]
    )


def test_a_change_lasts_from_the_first_call_to_the_last_return(benchmark: ModuleType) -> None:
    turns = [
        turn(benchmark, 10.0, 11.5, 13.0, 13.5, 14.0, 15.0, 16.5),
        turn(benchmark, 10.5, 12.0, 12.5, 13.0, 14.5, 15.5, 16.0),
    ]
    times = benchmark.results.Times.of(turns)
    assert (times.change, times.first) == (2.0, 1.0)
    assert times.usual == 1.0  # The last ends are 13.5, 14.5, 15.5 and 16.5.


def test_a_cycle_of_changes_ends_with_all_members(benchmark: ModuleType) -> None:
    cases = benchmark.cases
    for site in cases.SITES:
        counts = [len(cases.members_after(change, site.ranks)) for change in cases.CYCLE]
        assert counts == [site.ranks - 1, site.ranks, site.ranks]
    for series in cases.SERIES:
        assert cases.members_after(series.cycle[-1], 8) == tuple(range(8))


def growth(benchmark: ModuleType, *more: tuple[int, int, int]) -> Any:
    """Return the growth of ranks that have got so many bytes, descriptors and threads."""
    holdings = benchmark.performer.Holdings
    before = holdings(resident_bytes=1000, descriptors=10, threads=4)
    after = [
        holdings(resident_bytes=1000 + nbytes, descriptors=10 + descriptors, threads=4 + threads)
        for nbytes, descriptors, threads in more
    ]
    return benchmark.results.Growth(changes=10, before=[before] * len(more), after=after)


def test_what_the_worst_process_keeps_is_held_against_the_target(benchmark: ModuleType) -> None:
    results = benchmark.results.Results()
    series = benchmark.cases.SERIES[0]
    results.growths[series] = growth(benchmark, (500, 0, 0), (20_000, 1, 0), (-700, 0, 0))
    judged = {each.name.split(": ")[1]: each for each in results.targets() if each.measured}
    assert {name: each.measured for name, each in judged.items()} == {
        "memory of the process that grows most, bytes a change": 2000.0,
        "descriptors more": 1,
    }
    assert not any(each.met for each in judged.values())
    (row,) = results.rows()
    assert row.series["bytes_a_change"] == [50.0, 2000.0, -70.0]


def test_the_targets_are_those_of_slackline_alone(benchmark: ModuleType) -> None:
    cases, results = benchmark.cases, benchmark.results.Results()
    times = benchmark.results.Times
    for contestant in cases.CONTESTANTS:
        slower = 1 if contestant == cases.SLACKLINE else 9
        for change, millis in zip(cases.CYCLE, (10, 30, 15), strict=True):
            for nbytes, over in zip(cases.SIZES, (1, 3), strict=True):
                each = times(change=slower * millis / 1e3, first=over * 2e-3, usual=2e-3)
                results.add(cases.HOST, contestant, change, nbytes, each)
    results.skipped["lab"] = "a lab needs root"
    targets = results.targets()
    judged = [each for each in targets if each.measured is not None]
    assert [(each.measured, each.met) for each in judged] == [
        (10.0, True),
        (30.0, False),
        (15.0, True),
        (30.0, True),
        (1.0, True),
        (3.0, False),
    ]
    assert all(each.name.startswith("host: ") for each in judged)
    skipped, *rows = [row.as_json() for row in results.rows()]
    assert skipped == {"part": "lab", "skipped": "a lab needs root"}
    assert len(rows) == len(cases.CONTESTANTS) * (len(cases.CYCLE) + len(cases.SIZES))
    assert rows[0]["p99_us"] == 10_000.0
    assert rows[3]["first_median_us"] == rows[3]["usual_median_us"] == 2000.0
    (table,) = results.tables()
    assert table.row_count == len(cases.CONTESTANTS)

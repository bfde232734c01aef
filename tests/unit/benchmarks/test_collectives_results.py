"""Tests of the collectives benchmark's logic: the measured cells, ratios and targets."""

from collections.abc import Iterator
from types import ModuleType

import pytest
from benchmark_modules import modules_of


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules by name."""
    with modules_of("collectives-latency", "cases", "operations", "results") as found:
        yield found


def recorded(
    benchmark: ModuleType,
    seconds: dict[str, list[float]],
    missing: str | None = None,
    name: str = "shm-4",
):
    """Return results of one part; `seconds` lists, for each contestant, the time of a call in each
    cell."""
    (part,) = (part for part in benchmark.cases.PARTS if part.name == name)
    results = benchmark.results.Results()
    for number, case in enumerate(benchmark.cases.cases(part, quick=False)):
        cell = benchmark.results.Cell(part=part, case=case)
        samples = {who: [times[number % len(times)]] * 3 for who, times in seconds.items()}
        if case.has_empty_calls:
            samples[benchmark.cases.EMPTY] = [EMPTY_CALL if case.nbytes else 2 * EMPTY_CALL]
        results.record(cell, samples, missing)
    return results


def measured(results) -> dict[str, float | None]:
    return {target.name: target.measured for target in results.targets()}


EMPTY_CALL = 0.5
"""The seconds of an empty call; that of a barrier takes twice as long."""

GLOO = "shm-4: gloo over slackline, the least of the cells"
AHEAD = "share of the cells ahead of OpenMPI"
BEHIND = "slackline over OpenMPI, the largest of the cells"
CROWDED = "tcp-32, all_reduce, 4 KiB: OpenMPI over slackline"


def test_a_whole_run_has_every_operation_at_every_size_for_every_part(
    benchmark: ModuleType,
) -> None:
    *parts, last = benchmark.cases.PARTS
    assert last.name == "tcp-32"
    cells = benchmark.cases.cases(parts[0], quick=False)
    assert len(cells) == 9 * 6 + 1
    assert {case.nbytes for case in cells} == {0, *benchmark.cases.SIZES}
    assert {case.operation for case in cells} == set(benchmark.operations.OPERATIONS)
    names = [part.name for part in parts]
    assert names == ["shm-2", "shm-4", "shm-8", "tcp-2", "tcp-4", "tcp-8"]
    for part in parts:
        assert benchmark.cases.cases(part, quick=False) == cells
        assert not [case for case in cells if case.count % part.ranks]


def test_with_32_ranks_only_short_all_reduces_are_measured(benchmark: ModuleType) -> None:
    seconds = {"slackline": [1.0], "gloo": [3.0], "openmpi": [4.0, 0.5]}
    results = recorded(benchmark, seconds, name="tcp-32")
    cells = [(cell.case.operation, cell.case.nbytes) for cell in results.times]
    assert cells == [("all_reduce", 64), ("all_reduce", 4096)]
    assert measured(results)[CROWDED] == 0.5


def test_targets_are_computed_over_all_cells(benchmark: ModuleType) -> None:
    seconds = {
        "slackline": [1.0],
        "gloo": [3.0, 2.0, 1.5],
        "openmpi": [2.0, 2.0, 2.0, 2.0, 0.8],
    }
    results = recorded(benchmark, seconds)
    assert measured(results) == {GLOO: 1.5, AHEAD: 0.8, BEHIND: 1.25, CROWDED: None}
    assert [target.met for target in results.targets()] == [True, False, False, None]
    behind = [note for note in results.notes() if note.startswith("behind openmpi")]
    assert len(behind) == 11
    assert behind[0] == "behind openmpi in shm-4, all_reduce, 16 MiB: 0.80x"
    assert [table.row_count for table in results.tables()] == [55]


def test_the_cells_that_an_empty_call_bounds_are_counted(benchmark: ModuleType) -> None:
    # OpenMPI takes 0.4 s in eleven cells, less than an empty call, and 0.8 s in eleven others.
    seconds = {"slackline": [1.0], "gloo": [3.0], "openmpi": [2.0, 2.0, 2.0, 0.4, 0.8]}
    results = recorded(benchmark, seconds)
    (note,) = (note for note in results.notes() if note.startswith("of 22 cells"))
    assert note.startswith("of 22 cells behind OpenMPI over shm-4, 11 are ones")
    assert sum(row.labels["contestant"] == "empty" for row in results.rows()) == 10


def test_a_cell_that_is_thousands_of_times_slower_has_a_ratio(benchmark: ModuleType) -> None:
    results = recorded(benchmark, {"slackline": [1.0], "gloo": [1.0], "openmpi": [1.0, 1e-4]})
    assert measured(results)[BEHIND] == 10_000


def test_without_openmpi_its_rows_are_skipped_with_the_reason(benchmark: ModuleType) -> None:
    seconds = {"slackline": [1.0], "gloo": [0.5]}
    results = recorded(benchmark, seconds, "mpirun is not installed")
    assert measured(results) == {GLOO: 0.5, AHEAD: None, BEHIND: None, CROWDED: None}
    skipped = [row for row in results.rows() if row.skipped]
    assert {row.labels["contestant"] for row in skipped} == {"openmpi"}
    assert {row.skipped for row in skipped} == {"mpirun is not installed"}
    assert results.notes()[-1] == "openmpi skipped: mpirun is not installed"


@pytest.mark.parametrize("size", [2, 4, 8])
def test_every_operation_has_the_expected_values_of_its_definition(
    benchmark: ModuleType, size: int
) -> None:
    count = 16
    built = benchmark.operations.OPERATIONS
    whole = [[i % 1021 + 1024 * (rank + 1) for i in range(count)] for rank in range(size)]
    part = count // size
    sums = [sum(column) for column in zip(*whole, strict=True)]
    for rank in range(size):
        mine = slice(rank * part, (rank + 1) * part)
        expected = {
            "all_reduce": whole[-1],
            "reduce_scatter": sums[mine],
            "all_gather": [value for other in whole for value in other[:part]],
            "broadcast": whole[0],
            "reduce": whole[-1] if rank == 0 else [],
            "gather": [v for other in whole for v in other[:part]] if rank == 0 else [],
            "scatter": whole[0][mine],
            "all_to_all": [value for other in whole for value in other[mine]],
            "barrier": [],
            "send and back": whole[rank ^ 1],
        }
        found = {name: build(rank, size, count).expected.tolist() for name, build in built.items()}
        assert found == expected

from collections.abc import Iterator
from types import ModuleType

import pytest
from benchmark_modules import modules_of


@pytest.fixture(scope="module")
def results() -> Iterator[ModuleType]:
    """Provide the benchmark's module `results`."""
    with modules_of("allreduce-latency-bandwidth", "results") as found:
        yield found.results


def recorded(results: ModuleType, missing: str | None):
    """Return results in which every case is measured: gloo 20 times slower than slackline, OpenMPI
    three times."""
    times = {"gloo": 20e-6, "openmpi": 3e-6}
    found = results.Results()
    for case in results.CASES:
        for rails in ("tcp", "shm"):
            transports = [where for where in results.Transport if where.rails == rails]
            seats = {
                results.seat(who, where) for who in results.CONTESTANTS for where in transports
            }
            samples = {seat: [times.get(seat, 1e-6)] * 3 for seat in seats}
            if missing is not None:
                del samples["openmpi"]
            found.record(case, transports, samples, {"openmpi": missing})
    return found


def test_targets_compare_medians_with_those_of_the_table(results: ModuleType) -> None:
    met = {target.name: target.met for target in recorded(results, None).targets()}
    assert met["2 ranks, 4 KiB, shm private: gloo over slackline"] is True
    assert met["2 ranks, 64 KiB, shm registered: gloo over slackline"] is False
    assert met["4 ranks, 100 MB, shm private: openmpi over slackline"] is True
    assert len(met) == 16


def test_without_openmpi_its_rows_and_its_target_are_skipped_with_the_reason(
    results: ModuleType,
) -> None:
    found = recorded(results, "mpirun is not installed")
    skipped = [row.as_json() for row in found.rows() if row.skipped is not None]
    assert {row["contestant"] for row in skipped} == {"openmpi"}
    assert {row["skipped"] for row in skipped} == {"mpirun is not installed"}
    assert [target.name for target in found.targets() if target.met is None] == [
        "4 ranks, 100 MB, shm private: openmpi over slackline"
    ]
    assert found.notes() == ["openmpi skipped: mpirun is not installed"]


def test_the_idle_engine_is_judged_by_its_busiest_rank(results: ModuleType) -> None:
    found = results.Results(idle_ms={"tcp": [0.2, 0.4, 1.5, 0.1]})
    (target,) = [target for target in found.targets() if "idle" in target.name]
    assert target.measured == 1.5
    assert target.met is False


def test_every_case_has_a_line_for_each_transport(results: ModuleType) -> None:
    assert recorded(results, None).table().row_count == 15

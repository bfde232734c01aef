"""Tests of estimated link parameters from the durations of plans."""

import pytest

from slackline.nic.collectives._calibration import (
    LARGE_BYTES,
    SHORT_BYTES,
    chain_parameters,
    expected_timings,
    measure,
    mesh_terms,
)
from slackline.plan.collective import Collective, CostParameters, estimate, generate
from slackline.wire import DType


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("ranks", [*range(2, 10), 16, 33])
@pytest.mark.parametrize("nbytes", [LARGE_BYTES, 1 << 10, 100])
def test_the_terms_of_a_mesh_are_those_that_its_plan_has(
    nbytes: int, ranks: int, shared: bool
) -> None:
    unit = CostParameters(
        latency_ns=0, bytes_per_second=1, reduce_bytes_per_second=1, shared_memory=shared
    )
    whole = estimate(generate(Collective.ALL_REDUCE, "mesh", ranks), nbytes, unit)
    terms = mesh_terms(nbytes, ranks, shared_memory=shared)
    assert (terms.steps, terms.messages, terms.port_bytes, terms.reduced_bytes) == (
        whole.steps,
        whole.messages,
        whole.port_bytes,
        whole.reduced_bytes,
    )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("ranks", [4, 9, 64, 1000])
def test_the_time_of_a_chain_gives_back_the_parameters_that_it_was_made_from(
    ranks: int, shared: bool
) -> None:
    made = CostParameters(
        latency_ns=20_000,
        per_message_overhead_ns=5_000,
        bytes_per_second=2e9,
        reduce_bytes_per_second=20e9,
        shared_memory=shared,
    )
    (timing,) = expected_timings(("reduce-broadcast",), ranks, made)
    found = chain_parameters(timing, ranks, shared_memory=shared)
    assert found.latency_ns == pytest.approx(made.latency_ns, rel=0.001)
    assert found.per_message_overhead_ns == pytest.approx(made.per_message_overhead_ns, rel=0.001)
    assert found.bytes_per_second == pytest.approx(made.bytes_per_second, rel=0.01)
    assert found.shared_memory is shared


def test_a_group_that_makes_links_later_times_few_rounds_and_agrees_by_its_own_plan() -> None:
    ran: list[tuple[str, int]] = []

    def run(name: str, address: int, nbytes: int, dtype: DType = DType.FLOAT32) -> None:
        ran.append((name, nbytes if dtype is DType.FLOAT32 else -1))

    measure(("reduce-broadcast",), run, 16, "reduce-broadcast")
    assert {name for name, _ in ran} == {"reduce-broadcast"}
    assert [nbytes for _, nbytes in ran] == [SHORT_BYTES, SHORT_BYTES, LARGE_BYTES, -1]


@pytest.mark.parametrize(("ranks", "direct_ns"), [(8, 999_000), (9, 370_000), (64, 2_570_000)])
def test_many_ranks_derive_the_long_direct_plan_from_the_mesh(
    monkeypatch: pytest.MonkeyPatch, ranks: int, direct_ns: int
) -> None:
    costs = {
        ("direct", SHORT_BYTES): 10_000,
        ("direct", LARGE_BYTES): 999_000,
        ("mesh", SHORT_BYTES): 20_000,
        ("mesh", LARGE_BYTES): 100_000,
    }
    now, ran = 0, set[tuple[str, int]]()

    def run(name: str, address: int, nbytes: int, dtype: DType = DType.FLOAT32) -> None:
        nonlocal now
        if dtype is DType.FLOAT32:  # Operations of other types make the ranks agree on times.
            ran.add((name, nbytes))
            now += costs[name, nbytes]

    monkeypatch.setattr("slackline.nic.collectives._calibration.time.perf_counter_ns", lambda: now)
    assert measure(("direct", "mesh"), run, ranks) == [10_000, direct_ns, 20_000, 100_000]
    assert (("direct", LARGE_BYTES) in ran) == (ranks == 8)


def test_links_too_slow_for_another_round_run_the_mesh_a_second_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that the second, shorter run of the mesh counts; the other plans run once."""
    took = {"direct": [90_000_000], "mesh": [60_000_000, 40_000_000]}
    now, ran = 0, list[str]()

    def run(name: str, address: int, nbytes: int, dtype: DType = DType.FLOAT32) -> None:
        nonlocal now
        if dtype is DType.FLOAT32 and nbytes == SHORT_BYTES:
            now += 10_000
        elif dtype is DType.FLOAT32:
            now += took[name][ran.count(name)]
            ran.append(name)

    monkeypatch.setattr("slackline.nic.collectives._calibration.time.perf_counter_ns", lambda: now)
    assert measure(("direct", "mesh"), run, 4) == [10_000, 90_000_000, 10_000, 40_000_000]
    assert ran == ["direct", "mesh", "mesh"]

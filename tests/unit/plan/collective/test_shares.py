"""Tests of the shares of a mesh: they reach the bound, and no other shares are faster."""

from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackline.errors import UsageError
from slackline.plan.collective import (
    WHOLE,
    Collective,
    CostParameters,
    equal_shares,
    estimate,
    generate,
    port_time,
    shares,
    split,
    validate,
)

RATES = st.lists(st.integers(1, 10**10), min_size=3, max_size=12)
FREE = CostParameters(latency_ns=0, bytes_per_second=1.0, reduce_bytes_per_second=1e300)


def bound(rates: list[int]) -> Fraction:
    """Return the least time that any mesh needs for each byte of the tensor."""
    return max(Fraction(2 * (len(rates) - 1), sum(rates)), Fraction(1, min(rates)))


def grids(parts: int, whole: int) -> Iterator[tuple[int, ...]]:
    """Yield all tuples of `parts` integers from 0 on that add up to `whole`."""
    if parts == 1:
        yield (whole,)
        return
    for first in range(whole + 1):
        for rest in grids(parts - 1, whole - first):
            yield first, *rest


@settings(deadline=None)
@given(RATES)
def test_the_shares_add_up_and_reach_the_bound_but_for_rounding(rates: list[int]) -> None:
    weights = shares(rates)
    assert sum(weights) == WHOLE
    assert min(weights) >= 0
    rounding = Fraction(len(rates) - 2, WHOLE * min(rates))
    assert bound(rates) - rounding <= port_time(rates, weights) <= bound(rates) + rounding


@pytest.mark.parametrize(
    "rates", [[4, 4, 4, 2], [4, 4, 4, 3], [4, 4, 4, 1], [1, 2, 3], [1, 1, 8], [7, 1, 5, 2]]
)
def test_no_shares_of_a_fine_grid_beat_the_bound(rates: list[int]) -> None:
    best = min(port_time(rates, weights) for weights in grids(len(rates), 24))
    assert bound(rates) <= best
    assert port_time(rates, shares(rates)) <= best * Fraction(10001, 10000)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([4, 4, 4, 2], (21846, 21845, 21845, 0)),
        ([4, 4, 4, 3], (19661, 19661, 19661, 6553)),
        ([5, 5, 5, 5], (16384, 16384, 16384, 16384)),
        ([20, 16, 20, 5], (25746, 14044, 25746, 0)),
        ([1, 9], (32768, 32768)),
        ([3], (65536,)),
    ],
)
def test_shares_have_exact_values(rates: list[int], expected: tuple[int, ...]) -> None:
    assert shares(rates) == expected


@pytest.mark.parametrize(
    ("slow", "ratio"), [(3, Fraction(16, 15)), (2, Fraction(4, 3)), (1, Fraction(8, 3))]
)
def test_one_slow_port_of_four_costs_what_the_bound_says(slow: int, ratio: Fraction) -> None:
    even = port_time([4] * 4, equal_shares(4))
    assert float(port_time([4, 4, 4, slow], shares([4, 4, 4, slow])) / even) == pytest.approx(
        float(ratio), rel=1e-4
    )
    assert port_time([4, 4, 4, slow], equal_shares(4)) / even == Fraction(4, slow)


@settings(deadline=None, max_examples=settings.default.max_examples * 3 // 10)
@given(st.lists(st.integers(1, 1000), min_size=3, max_size=6), st.integers(0, 10**6))
def test_the_cost_model_counts_the_bytes_of_weighted_chunks(rates: list[int], nbytes: int) -> None:
    weights = shares(rates)
    plan = validate(generate(Collective.ALL_REDUCE, "mesh", len(rates), weights=weights))
    found = estimate(plan, nbytes, FREE, port_rates=rates)
    sizes = [size for _, size in split(nbytes, len(rates), 1, weights)]
    carried = [nbytes + (len(rates) - 2) * size for size in sizes]
    assert found.port_bytes == max(carried)
    assert found.time_ns == round(
        max(each / rate for each, rate in zip(carried, rates, strict=True)) * 10**9
    )


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ([], "rates must have the rate of at least one rank, not be empty"),
        ([1, 0, 1], "the rate of rank 1 must be positive, not 0"),
        ([1, 1, -3], "the rate of rank 2 must be positive, not -3"),
    ],
)
def test_a_wrong_rate_is_named(rates: list[int], message: str) -> None:
    with pytest.raises(UsageError) as error:
        shares(rates)
    assert str(error.value) == message


def test_a_plan_refuses_weights_that_do_not_fit() -> None:
    with pytest.raises(UsageError) as error:
        generate(Collective.ALL_REDUCE, "mesh", 3, weights=(1, 2))
    assert str(error.value) == "3 parts need 3 weights, not 2"
    with pytest.raises(UsageError) as error:
        generate(Collective.ALL_GATHER, "mesh", 2, weights=(1, 2))
    assert str(error.value) == "all_gather cuts no buffer and takes no weights"


def test_the_cost_model_refuses_a_wrong_number_of_port_rates() -> None:
    plan = generate(Collective.ALL_REDUCE, "mesh", 3)
    with pytest.raises(UsageError) as error:
        estimate(plan, 1, FREE, port_rates=[1.0])
    assert str(error.value) == "3 ranks need 3 port rates, not 1"

"""Tests of the formulas for the cost of all-reduce plans: they agree with the plans themselves."""

import pytest

from slackline.errors import UsageError
from slackline.plan.collective import (
    Collective,
    CostParameters,
    estimate,
    expected_ns,
    generate,
    names,
)

NAMES = names(Collective.ALL_REDUCE, helpers=1)


def parameters(*, shared: bool, crowd: float = 1) -> CostParameters:
    return CostParameters(
        latency_ns=10_000,
        per_message_overhead_ns=1_000,
        bytes_per_second=1e9,
        reduce_bytes_per_second=3e9,
        shared_memory=shared,
        ranks_per_processor=crowd,
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("shared", "crowd"), [(False, 1), (True, 1), (False, 64)])
def test_a_formula_gives_what_the_plan_costs(name: str, shared: bool, crowd: float) -> None:
    cost = parameters(shared=shared, crowd=crowd)
    for ranks in range(2, 20):
        plan = generate(Collective.ALL_REDUCE, name, ranks)
        for lines in (0, 1, 7, 1000):
            nbytes = 64 * plan.chunks * lines  # All chunks have the same length.
            wanted = estimate(plan, nbytes, cost).time_ns
            assert expected_ns(name, ranks, nbytes, cost) == pytest.approx(wanted, abs=1), ranks


def test_a_thousand_ranks_need_no_plan_of_theirs() -> None:
    cost = parameters(shared=False)
    # A mesh: 2 steps, 4 * 999 messages, 2 * 999 / 1000 of the buffer sent, 999 / 1000 reduced.
    wanted = 2 * 10_000 + 3996 * 1_000 + 1_998_000 + 333_000
    assert expected_ns("mesh", 1000, 1_000_000, cost) == wanted


def test_an_unknown_plan_is_named_with_those_that_are_known() -> None:
    with pytest.raises(
        UsageError, match=r'^all_reduce has no plan "comet"; its plans are direct, mesh, ring, '
    ):
        expected_ns("comet", 4, 64, parameters(shared=True))

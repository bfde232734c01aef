"""Tests of the bounds that the benchmark uneven-nics compares with."""

from fractions import Fraction

import pytest
from benchmark_modules import modules_of

from slackline.plan.collective import port_time, shares


@pytest.mark.parametrize("quarters", [4, 3, 2, 1])
def test_the_bound_is_the_time_of_the_best_shares(quarters: int) -> None:
    with modules_of("uneven-nics", "cases") as benchmark:
        cases = benchmark.cases
        rates = [4] * (cases.HOSTS - 1) + [quarters]
        best = port_time(rates, shares(rates)) / port_time([4] * cases.HOSTS, [1] * cases.HOSTS)
        slow = cases.bound_seconds(10**8, Fraction(quarters, 4))
        assert slow / cases.bound_seconds(10**8, Fraction(1)) == pytest.approx(best, rel=1e-4)


def test_a_port_that_fails_midway_costs_half_of_what_a_slow_one_does() -> None:
    with modules_of("uneven-nics", "cases") as benchmark:
        cases = benchmark.cases
        even, *slow, midway = (cases.case_seconds(case, 10**8) for case in cases.CASES)
        assert midway == pytest.approx((even + slow[1]) / 2)
        assert [round(each / even, 3) for each in slow] == [1.067, 1.333, 2.667]

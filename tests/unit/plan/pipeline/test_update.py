"""Tests that a plan and the times that it was made for are decoded as they were encoded."""

from fractions import Fraction

import pytest

from slackline.errors import UsageError
from slackline.plan.pipeline import (
    PlanUpdate,
    Scenario,
    generate,
    interleaved_1f1b,
    planned_waits_ps,
)

MS = 10**9


def test_an_update_is_the_same_after_it_was_sent():
    scenario = Scenario.uniform(4, 8, (10 * MS, 10 * MS, 5 * MS), cap=Fraction(9, 2), freed=1)
    scenario = scenario.delayed(1, 7 * MS, 3 * MS)
    for plan in (generate("zb-h1", scenario), interleaved_1f1b(4, 8, full_backward=True)):
        update = PlanUpdate.of(plan, scenario, "link 1-2 has 5 ms")
        assert update.waits_ps == planned_waits_ps(plan, scenario)
        assert PlanUpdate.decode(update.encode()) == update


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"no plan", "7 bytes are no plan of a pipeline: "),
        (b"", "0 bytes are no plan of a pipeline: "),
    ],
)
def test_other_bytes_are_refused(data, message):
    with pytest.raises(UsageError, match=message):
        PlanUpdate.decode(data)

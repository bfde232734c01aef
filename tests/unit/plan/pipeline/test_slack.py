import pytest

from slackline.errors import UsageError
from slackline.plan.pipeline import (
    Scenario,
    expected_extra_ps,
    link_slacks,
    quotas,
    replay,
    slack_needed,
    slack_plan,
    slacks,
    tolerance_ps,
    zero_bubble,
)

EVEN = Scenario.uniform(4, 12, (10, 10, 10))


def test_the_slack_of_a_link_is_what_the_stage_above_has_more_in_flight() -> None:
    assert slacks((7, 5, 3, 1)) == (2, 2, 2)
    assert slacks((4, 3, 2, 1)) == (1, 1, 1)
    with pytest.raises(UsageError) as error:
        slacks((2, 3))
    assert str(error.value) == (
        "stage 1 cannot run 3 forwards before its first backward when stage 0 runs 2"
    )


@pytest.mark.parametrize("slack", [1, 2, 3, 7])
def test_with_equal_times_a_link_tolerates_one_forward_less_than_its_slack(slack: int) -> None:
    assert tolerance_ps(EVEN, 0, slack) == (slack - 1) * 10


@pytest.mark.parametrize(("delay", "needed"), [(0, 1), (10, 2), (11, 3), (20, 3), (60, 7)])
def test_the_slack_needed_is_the_smallest_that_tolerates_the_delay(delay: int, needed: int) -> None:
    delayed = EVEN.delayed(1, delay)
    assert slack_needed(delayed, 1) == needed
    assert tolerance_ps(delayed, 1, needed) >= delay
    assert needed == 1 or tolerance_ps(delayed, 1, needed - 1) < delay


def test_within_the_tolerance_the_delay_is_paid_once() -> None:
    plan = zero_bubble(4, 12)
    assert expected_extra_ps(EVEN.delayed(0, 10), 0, 2) == 10
    assert replay(plan, EVEN.delayed(0, 10)).makespan_ps - replay(plan, EVEN).makespan_ps == 10


def test_beyond_it_every_group_pays() -> None:
    assert expected_extra_ps(EVEN.delayed(0, 30), 0, 2) == 12 * 30 // 3
    plan = zero_bubble(4, 12)
    extra = replay(plan, EVEN.delayed(0, 30)).makespan_ps - replay(plan, EVEN).makespan_ps
    assert extra == 110


def test_each_link_under_a_plan_is_described() -> None:
    first, second, _ = link_slacks(EVEN.delayed(0, 20).delayed(1, 8, 4), (7, 5, 3, 1))
    assert (first.slack, first.tolerance_ps, first.delay_ps, first.broken) == (2, 10, 20, True)
    assert (second.tolerance_ps, second.delay_ps, second.broken) == (10, 6, False)
    with pytest.raises(UsageError, match=r"^4 stages need as many warm-ups, not 2$"):
        link_slacks(EVEN, (2, 1))


def test_quotas_follow_the_delays_and_stay_within_the_cap() -> None:
    assert quotas(EVEN) == (5, 4, 3, 2)
    assert quotas(EVEN.delayed(2, 60)) == (11, 10, 9, 2)
    assert quotas(EVEN.delayed(2, 60).capped([8, 8, 8, 8])) == (8, 8, 8, 2)


def test_the_slack_plan_absorbs_what_1f1b_does_not() -> None:
    delayed = EVEN.delayed(2, 60).capped([8] * 4)
    plan = slack_plan(delayed)
    timing = replay(plan, delayed)
    assert max(timing.peak_activations) <= 8
    assert timing.makespan_ps < 700

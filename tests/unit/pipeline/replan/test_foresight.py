"""Tests that forecasts are for the steps that a new plan would serve, at a bounded cost a step."""

import pytest

from slackline.pipeline.replan._decision import StepMetrics
from slackline.pipeline.replan.foresight import Foresight

MS = 1_000_000
PERIOD, SLOW = 20, 6


def congested(step, phase=0):
    return 40 * MS if (step + phase) % PERIOD < SLOW else 0


def run(steps, delays, *, step_ms=400, lead=None):
    """Return the foretold delays in ms of each link by step, and the object that foretold them.

    The measurements of a step are known two steps later. `delays(step)` has the delay of each link.
    """
    links = len(delays(0))
    foresight = Foresight(links, lambda choice, reason: None)
    if lead is not None:
        foresight.requested(0)
        foresight.adopted(lead)
    found = []
    for step in range(steps):
        foresight.step_ended(step, step * step_ms * MS, (step + 1) * step_ms * MS)
        if step == 0:
            continue
        before = tuple(delays(step - 1))
        metrics = StepMetrics(
            step=step - 1,
            forward=(MS,) * (links + 1),
            backward=(MS,) * (links + 1),
            weights=(MS,) * (links + 1),
            down=before,
            up=before,
        )
        # A plan that is requested now is requested at the beginning of step + 1.
        expected = foresight.expected(metrics, (step + 1) * step_ms * MS)
        found.append({link: each.delay_ns // MS for link, each in expected.items()})
    return found, foresight


def slow_requests(found, link=0):
    """Return the steps of the last period in which a plan for the delay would be requested, counted
    from the first slow step, which is the middle of a period."""
    steps = [place + 2 for place in range(len(found) - PERIOD, len(found)) if found[place][link]]
    return sorted((step + PERIOD // 2 + 12) % PERIOD - 12 for step in steps)


def test_a_delay_is_foretold_for_the_step_of_adoption_and_the_next():
    delays = [congested(step, PERIOD // 2) for step in range(9 * PERIOD)]
    found, _ = run(8 * PERIOD, lambda step: [delays[step]])
    # A plan that is requested four steps before the delay is adopted one step before it.
    assert slow_requests(found) == list(range(-4, SLOW - 3))


@pytest.mark.slow
def test_a_plan_that_takes_longer_is_requested_earlier():
    delays = [congested(step, PERIOD // 2) for step in range(9 * PERIOD)]
    found, _ = run(8 * PERIOD, lambda step: [delays[step]], lead=8)
    assert slow_requests(found) == list(range(-9, SLOW - 8))


def test_links_take_turns_and_calm_links_are_left_out():
    found, foresight = run(
        10 * PERIOD, lambda step: [congested(step), 0, congested(step, 11), MS // 2]
    )
    assert set(found[-1]) == {0, 2}
    scored = [history.scored for history in foresight._histories]
    assert scored[1] == scored[3] == 0
    # One forecast a step is made, alternately for one of the two links.
    assert 0 <= scored[0] - scored[2] <= 10
    assert 8 * PERIOD < scored[0] + scored[2] < 10 * PERIOD


@pytest.mark.slow
def test_fast_steps_share_a_forecast():
    found, foresight = run(20 * PERIOD, lambda step: [congested(step)], step_ms=50)
    # 400 steps of 50 ms take 20 s, in which there are 100 pauses of 200 ms.
    assert 90 < foresight._histories[0].scored < 100
    assert set(found[-1]) == {0}

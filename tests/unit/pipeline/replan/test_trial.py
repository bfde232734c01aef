"""Tests of the trial of plans: its rounds, its end and its choice."""

import math
import random

import pytest

from slackline.pipeline.replan._trial import LATER, MOST_ROUNDS, TURN
from slackline.plan.pipeline import PlanUpdate, Scenario, gpipe, one_f_one_b, zb_h1, zb_h2

SCENARIO = Scenario.uniform(2, 4)
UPDATES = [
    PlanUpdate.of(plan, SCENARIO, "for a test")
    for plan in (one_f_one_b(2, 4), gpipe(2, 4), zb_h1(2, 4), zb_h2(2, 4))
]


def test_the_fastest_plan_wins_and_the_reason_has_all_times(run_trial) -> None:
    times = {"1f1b": 30.0, "gpipe": 25.0, "zb-h1": 20.0, "zb-h2": 40.0}
    trial, seen = run_trial(UPDATES, lambda name, step: times[name] * 1e6)
    assert trial.winner.update.plan.name == "zb-h1"
    assert trial.reason == (
        "a trial, step times: zb-h1 20 ms, gpipe 25 ms, 1f1b 30 ms, zb-h2 40 ms"
    )
    assert seen[-1] == trial.next()[0].update.plan.name == "zb-h1"


def test_a_plan_that_has_lost_five_rounds_of_five_is_dropped_and_ends_the_trial(run_trial):
    trial, seen = run_trial(UPDATES, lambda name, step: 1e6 * (1 + (name != "zb-h1")))
    # The times of the fifth round's last turn are known in the sixth round.
    assert len(seen) == 5 * 4 * TURN + TURN * 2 + 1
    assert set(seen[-1 - TURN * 2 :]) == {"zb-h1", seen[5 * 4 * TURN - 1]}
    assert trial.winner.update.plan.name == "zb-h1"


def test_plans_that_differ_by_less_than_3_percent_need_not_be_told_apart(run_trial):
    draw = random.Random(1)
    _, seen = run_trial(UPDATES[:2], lambda name, step: 1e8 * (1 + 0.01 * draw.random()))
    assert len(seen) == (5 + 1) * 2 * TURN + 1


def test_a_trial_of_plans_that_noise_hides_ends(run_trial):
    draw = random.Random(3)
    _, seen = run_trial(UPDATES[:2], lambda name, step: 1e8 * math.exp(draw.gauss(0, 0.5)))
    assert len(seen) == MOST_ROUNDS * 2 * TURN + LATER + 1


def test_a_load_that_comes_with_the_steps_hits_all_plans_alike(run_trial) -> None:
    times = {"1f1b": 1.0, "gpipe": 1.02}
    trial, _ = run_trial(UPDATES[:2], lambda name, step: times[name] * (1e6 + 1e5 * step))
    assert trial.winner.update.plan.name == "1f1b"


def test_the_first_step_of_a_turn_does_not_count(run_trial) -> None:
    last = []

    def time_of(name: str, step: int) -> float:
        fresh = last[-1:] != [name]
        last.append(name)
        return 1e9 if fresh and name == "gpipe" else {"1f1b": 2e6, "gpipe": 1e6}[name]

    trial, _ = run_trial(UPDATES[:2], time_of)
    assert trial.winner.update.plan.name == "gpipe"
    assert trial.winner.median_ns == pytest.approx(1e6)

"""Tests of the trial of plans: its turns, its stages and its choice."""

import pytest

from slackline.pipeline.replan._trial import LENGTHS, Trial
from slackline.plan.pipeline import PlanUpdate, Scenario, gpipe, one_f_one_b, zb_h1, zb_h2

SCENARIO = Scenario.uniform(2, 4)
GAP = 2
"""The steps after a stage until its times are known."""
UPDATES = [
    PlanUpdate.of(plan, SCENARIO, "for a test")
    for plan in (one_f_one_b(2, 4), gpipe(2, 4), zb_h1(2, 4), zb_h2(2, 4))
]


def run(updates, time_of):
    """Run a trial to its end; return it and the names of the plans by step.

    `time_of(name, step)` is the time of a step, which arrives two steps later.
    """
    trial, seen, under_way = Trial(updates), [], []
    while trial.winner is None:
        if len(under_way) == 2:
            candidate, elapsed_ns = under_way.pop(0)
            if candidate is not None:
                candidate.step_ns.append(elapsed_ns)
        candidate, counts = trial.next()
        name = candidate.update.plan.name
        under_way.append((candidate if counts else None, time_of(name, len(seen))))
        seen.append(name)
    return trial, seen


def test_the_fastest_plan_wins_and_the_reason_has_all_times() -> None:
    times = {"1f1b": 30.0, "gpipe": 25.0, "zb-h1": 20.0, "zb-h2": 40.0}
    trial, seen = run(UPDATES, lambda name, step: times[name] * 1e6)
    assert trial.winner.update.plan.name == "zb-h1"
    assert trial.reason == "a trial, ms a step: zb-h1 20.0, gpipe 25.0, 1f1b 30.0, zb-h2 40.0"
    assert (
        len(seen)
        == LENGTHS.turn * (4 * LENGTHS.turns[0] + LENGTHS.finalists * LENGTHS.turns[1])
        + 2 * GAP
        + 1
    )
    assert set(seen[4 * LENGTHS.turn * LENGTHS.turns[0] + GAP : -1 - GAP]) == {"zb-h1", "gpipe"}
    assert seen[-1] == trial.next()[0].update.plan.name == "zb-h1"


def test_a_load_that_comes_with_the_steps_hits_all_plans_alike() -> None:
    times = {"1f1b": 1.0, "gpipe": 1.02}
    trial, seen = run(UPDATES[:2], lambda name, step: times[name] * (1e6 + 1e5 * step))
    assert len(seen) == LENGTHS.turn * 2 * sum(LENGTHS.turns) + GAP + 1
    assert trial.winner.update.plan.name == "1f1b"


def test_the_first_step_of_a_turn_does_not_count() -> None:
    last = []

    def time_of(name: str, step: int) -> float:
        fresh = last[-1:] != [name]
        last.append(name)
        return 1e9 if fresh and name == "gpipe" else {"1f1b": 2e6, "gpipe": 1e6}[name]

    trial, _ = run(UPDATES[:2], time_of)
    assert trial.winner.update.plan.name == "gpipe"
    assert trial.winner.median_ns == pytest.approx(1e6)

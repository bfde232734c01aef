"""Tests of the dispatch order "planned": it follows the plan where possible, else readiness, and
never deadlocks."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackline.plan.pipeline import (
    PATIENCE,
    PS_PER_MS,
    Scenario,
    auto,
    generate,
    planned_waits_ps,
    replay,
)
from slackline.sim import Channel, Network, simulate

MS = PS_PER_MS


def test_a_plan_whose_times_hold_takes_no_longer_than_planned() -> None:
    scenario = Scenario.uniform(4, 12, (10 * MS, 10 * MS, 10 * MS), cap=8).delayed(1, 25 * MS)
    found = auto(scenario)
    run = simulate(found.plan, scenario, order="planned")
    assert run.makespan_ps <= found.makespan_ps


def test_a_delay_that_the_plan_does_not_know_is_met_by_readiness() -> None:
    scenario = Scenario.uniform(4, 16, (10 * MS, 10 * MS, 10 * MS), cap=6)
    plan = generate("auto", scenario)
    slow = scenario.delayed(2, 40 * MS)
    fixed, planned = (
        simulate(plan, slow, order=order, expected=scenario).makespan_ps
        for order in ("fixed", "planned")
    )
    assert planned < fixed


@pytest.mark.parametrize(("patience", "makespan_ms"), [(PATIENCE, 512), (Fraction(0), 531)])
def test_messages_that_are_a_little_late_are_waited_for(
    patience: Fraction, makespan_ms: int
) -> None:
    scenario = Scenario.uniform(4, 12, (10 * MS, 10 * MS, 10 * MS), cap=8).delayed(2, 60 * MS)
    plan = generate("auto", scenario)
    assert replay(plan, scenario).makespan_ps == 510 * MS
    late = Channel(latency_ps=60 * MS, jitter_ps=3 * MS // 10)
    near = Channel(jitter_ps=3 * MS // 10)
    network = Network(forward=(near, near, late), backward=(near, near, late), seed=1)
    run = simulate(plan, scenario, network, order="planned", patience=patience)
    assert run.makespan_ps // MS == makespan_ms


def test_what_a_plan_waits_for_is_what_its_replay_shows() -> None:
    scenario = Scenario.uniform(2, 1, (10 * MS, 20 * MS, 5 * MS)).delayed(0, 7 * MS)
    plan = generate("zb-h1", scenario)
    assert [str(each) for each in plan.programs[0]] == ["0F0", "0B0", "0W0"]
    assert planned_waits_ps(plan, scenario) == ((0, 44 * MS, 0), (17 * MS, 0, 0))


@settings(max_examples=settings.default.max_examples * 3 // 5)
@given(
    stages=st.integers(2, 5),
    microbatches=st.integers(1, 9),
    cap=st.integers(1, 6),
    name=st.sampled_from(["ready", "slack"]),
    seed=st.integers(0, 1000),
    jitter=st.integers(0, 200),
)
def test_it_runs_to_its_end_within_the_caps_whatever_the_network_does(
    stages: int, microbatches: int, cap: int, name: str, seed: int, jitter: int
) -> None:
    scenario = Scenario.uniform(stages, microbatches, (7 * MS, 11 * MS, 5 * MS), cap=cap)
    plan = generate(name, scenario)
    channels = tuple(Channel(jitter_ps=jitter * MS) for _ in range(stages - 1))
    network = Network(forward=channels, backward=channels, seed=seed)
    run = simulate(plan, scenario, network, order="planned")
    assert sum(map(len, run.spans)) == 3 * stages * microbatches
    assert max(run.peak_activations) <= cap

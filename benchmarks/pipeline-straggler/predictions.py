"""The simulator's predictions for the measured iterations."""

from __future__ import annotations

from _harness import timed_pipeline
from cases import MOST_MS, Case
from contestants import ONE_F_ONE_B, Entry

from slackline.plan.pipeline import (
    PS_PER_MS,
    Order,
    PipelinePlan,
    Scenario,
    from_torch_csv,
    generate,
    one_f_one_b,
)
from slackline.sim import Network, simulate

EXPECTED_MS = MOST_MS // 2
"""The average in ms of a delay that is drawn anew."""


def scenario(case: Case, cap: int | None = None) -> Scenario:
    """Return the planner's scenario for a network, with the average of each changing delay."""
    redrawn = ((link, EXPECTED_MS) for link in case.redrawn)
    return timed_pipeline.scenario(case.shape, (*case.delays_ms, *redrawn), cap)


def network(case: Case) -> Network:
    """Return the simulated network of a case, with its delays as they change over time."""
    found = Network.of(scenario(case))
    for link in case.redrawn:
        steps = [(at * PS_PER_MS, ms * PS_PER_MS) for at, ms in case.steps(link)]
        found = found.changing(link, steps)
    return found


def simulated_ms(entry: Entry, case: Case, order: str | None) -> float:
    """Return the simulated time of an iteration in ms.

    `order` is the CSV of the orders if PyTorch made them. A policy that makes new plans for the
    network is simulated with the final plan, for the case's delays. Adaptra's policy, and a fixed
    order, do not use stage times until a link is slow.
    """
    known = scenario(case, case.shape.cap if entry.capped else None)
    how: Order = "ready" if entry.policy == "ready" else "fixed"
    run = simulate(_plan(entry, known, order), known, network(case), order=how)
    return run.makespan_ps / PS_PER_MS


def _plan(entry: Entry, known: Scenario, order: str | None) -> PipelinePlan:
    if entry.torch == ONE_F_ONE_B:
        return one_f_one_b(known.stages, known.microbatches, full_backward=True)
    if entry.torch is not None:
        assert order is not None
        return from_torch_csv(order)
    blind = entry.policy == "adaptra" and not any(known.forward_delay_ps)
    if entry.policy == "fixed" or blind:
        return generate(entry.schedule, Scenario.uniform(known.stages, known.microbatches))
    return generate(entry.schedule, known)

"""The shortest possible pipeline order, proven by a solver that is independent of the planner."""

from ortools.sat.python import cp_model
from pipeline_scenarios import UNIT_PS

from slackline.plan.pipeline import Scenario

F, B, W = range(3)


def optimum_ps(scenario: Scenario, at_most_ps: int, seconds: float) -> int | None:
    """Return the optimal makespan if one thread proves it within `seconds`; otherwise None.

    `at_most_ps` is the makespan of a plan that is already known.
    """
    count, stages = scenario.microbatches, range(scenario.stages)
    ms = [
        [each // UNIT_PS for each in times]
        for times in (
            scenario.forward_ps,
            scenario.backward_input_ps,
            scenario.backward_weight_ps,
            scenario.forward_delay_ps,
            scenario.backward_delay_ps,
        )
    ]
    times, down, up = ms[:3], ms[3], ms[4]
    horizon = at_most_ps // UNIT_PS
    model = cp_model.CpModel()
    start = {
        (i, kind, m): model.new_int_var(0, horizon, "")
        for i in stages
        for kind in (F, B, W)
        for m in range(count)
    }
    end = {(i, kind, m): var + times[kind][i] for (i, kind, m), var in start.items()}
    for i in stages:
        model.add_no_overlap(
            model.new_fixed_size_interval_var(start[i, kind, m], times[kind][i], "")
            for kind in (F, B, W)
            for m in range(count)
        )
        for m in range(count):
            model.add(start[i, B, m] >= end[i, F, m])
            model.add(start[i, W, m] >= end[i, B, m])
            for kind in (F, B, W):
                if m:
                    model.add(start[i, kind, m] >= end[i, kind, m - 1])
            if i + 1 in stages:
                model.add(start[i + 1, F, m] >= end[i, F, m] + down[i])
                model.add(start[i, B, m] >= end[i + 1, B, m] + up[i])
        _within_memory(model, scenario, i, start, end, horizon)
    makespan = model.new_int_var(0, horizon, "")
    for i in stages:
        model.add(makespan >= end[i, W, count - 1])
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    if solver.solve(model) != cp_model.OPTIMAL:
        return None
    return round(solver.objective_value) * UNIT_PS


def _within_memory(model, scenario, stage, start, end, horizon) -> None:
    memory = scenario.memory[stage]
    if memory.cap is None:
        return
    intervals, demands = [], []
    parts = ((B, memory.freed_at_backward), (W, memory.activation - memory.freed_at_backward))
    for m in range(scenario.microbatches):
        for kind, demand in parts:
            if demand:
                size, until = (model.new_int_var(0, horizon, "") for _ in range(2))
                model.add(until == end[stage, kind, m])
                begin = start[stage, F, m]
                intervals.append(model.new_interval_var(begin, size, until, ""))
                demands.append(demand)
    model.add_cumulative(intervals, demands, memory.cap)

"""Reports on a pipeline plan for `slackline plan pipeline`: as text, as JSON values, as tables."""

import itertools
from fractions import Fraction

from slackline.cli._plan_pipeline._input import Study
from slackline.errors import UsageError
from slackline.plan.pipeline import (
    PS_PER_MS,
    SCHEDULES,
    Kind,
    Options,
    PipelinePlan,
    Scenario,
    Timing,
    auto,
    check,
    link_slacks,
    lower_bound_ps,
    placement_of,
    replay,
    timetable,
)
from slackline.units import show_number, show_percent, show_time

__all__ = ["compared", "memory_curve", "in_ms", "report", "table", "text"]

Row = dict[str, object]


def report(plan: PipelinePlan, scenario: Scenario, sends: str) -> Row:
    """Return a plan's figures and orders as JSON values; peaks are per stage, orders per rank."""
    timing = _timed(plan, scenario, sends)
    return {
        "schedule": plan.name,
        "sends": sends,
        "stages": plan.stages,
        "ranks": plan.ranks,
        "microbatches": plan.microbatches,
        "makespan_ms": timing.makespan_ps / PS_PER_MS,
        "lower_bound_ms": lower_bound_ps(scenario, plan.placement) / PS_PER_MS,
        "bubble_share": float(timing.bubble_share),
        "peak_activations": [_count(each) for each in timing.peak_activations],
        "orders": plan.orders(),
    }


def text(plan: PipelinePlan, scenario: Scenario, sends: str) -> str:
    """Return a plan's timetable, its figures, and the slack of each link as text.

    The slack of a link is the number of further forwards that the upper stage has in flight. Slack
    is only reported where each rank has one stage.
    """
    timing = _timed(plan, scenario, sends)
    bound = lower_bound_ps(scenario, plan.placement)
    peaks = ", ".join(show_number(float(each)) for each in timing.peak_activations)
    lines = [
        str(plan),
        timetable(plan, timing),
        "",
        f"makespan: {in_ms(timing.makespan_ps)} with {sends} sends",
        f"lower bound: {in_ms(bound)}; the plan is {show_percent(timing.makespan_ps / bound - 1)} "
        f"above it",
        f"bubble share: {show_percent(float(timing.bubble_share))}",
        f"peak activations: {peaks}",
    ]
    return "\n".join([*lines, *_slack_lines(plan, scenario)])


def compared(study: Study, options: Options, sends: str) -> list[Row]:
    """Return a row for each schedule, the shortest first; schedules above a memory cap are last."""
    rows = []
    for name, schedule in SCHEDULES.items():
        row: Row = {"schedule": name, "ranks": None, "makespan_ms": None, "bubble_share": None}
        row |= {"peak_activations": None, "fits": False, "reason": schedule.about}
        try:
            scenario = study.delayed(placement_of(name, study.healthy.stages, options))
            plan = schedule.make(scenario, options)
            fault = check(plan, scenario)
        except UsageError as error:
            rows.append(row | {"reason": str(error)})
            continue
        timing = _timed(plan, scenario, sends)
        row |= {
            "ranks": plan.ranks,
            "makespan_ms": timing.makespan_ps / PS_PER_MS,
            "bubble_share": float(timing.bubble_share),
            "peak_activations": _count(max(timing.peak_activations)),
            "fits": fault is None,
        }
        rows.append(row if fault is None else row | {"reason": str(fault)})

    def place(row: Row) -> tuple[bool, float]:
        shown = row["makespan_ms"]
        return not row["fits"], shown if isinstance(shown, float) else float("inf")

    return sorted(rows, key=place)


def memory_curve(scenario: Scenario, options: Options) -> list[Row]:
    """Return the makespan of the schedule `auto` under each activation cap, one row per cap.

    The caps run from 1 to 3 activations per stage of the pipeline (3 S for S stages), or to the
    number of microbatches N if that is smaller. A plan found under a smaller cap also fits a larger
    one, so the makespan never grows with the cap.
    """
    rows: list[Row] = []
    best = None
    most = min(3 * scenario.stages, scenario.microbatches)
    for cap in range(1, most + 1):
        found = auto(
            scenario.capped([cap] * scenario.stages), effort=options.effort, stop=options.stop
        )
        best = found.makespan_ps if best is None else min(best, found.makespan_ps)
        rows.append(
            {
                "activation_cap": cap,
                "makespan_ms": best / PS_PER_MS,
                "lower_bound_ms": found.lower_bound_ps / PS_PER_MS,
            }
        )
    return rows


def table(rows: list[Row]) -> str:
    """Format rows as text columns, with their keys as headings."""
    heads = [key.removesuffix("_ms").replace("_", " ") for key in rows[0]]
    cells = [heads, *([_cell(key, value) for key, value in row.items()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def _timed(plan: PipelinePlan, scenario: Scenario, sends: str) -> Timing:
    """Return the times of a plan; raise UsageError where there are no such sends."""
    if sends == "asynchronous":
        return replay(plan, scenario)
    from slackline.sim import SENDS, Network, simulate

    if sends not in SENDS:
        raise UsageError(f'--sends must be one of {", ".join(SENDS)}, not "{sends}"')
    run = simulate(plan, scenario, Network.of(scenario).sending(sends))
    return Timing(
        start_ps=tuple(tuple(span.start_ps for span in spans) for spans in run.spans),
        end_ps=tuple(tuple(span.end_ps for span in spans) for spans in run.spans),
        makespan_ps=run.makespan_ps,
        bubble_share=run.bubble_share,
        peak_activations=run.peak_activations,
    )


def _slack_lines(plan: PipelinePlan, scenario: Scenario) -> list[str]:
    """Return a line for each link: the slack that the plan's warm-up gives, and the link's delay.

    The line says which delay the slack absorbs, and whether the link's delay is at most as long.
    """
    if plan.ranks < plan.stages or plan.stages == 1:
        return []
    x = [
        next(place for place, each in enumerate(program) if each.kind in (Kind.B, Kind.BW))
        for program in plan.programs
    ]
    if any(above < below for above, below in itertools.pairwise(x)):
        return []
    lines = []
    for each in link_slacks(scenario, x):
        absorbs = f"link {each.link}: slack {each.slack} absorbs {in_ms(max(0, each.tolerance_ps))}"
        if each.delay_ps == 0:
            lines.append(absorbs)
        else:
            verdict = "more than that" if each.broken else "within that"
            lines.append(f"{absorbs}; its delay of {in_ms(each.delay_ps)} is {verdict}")
    return lines


def _cell(key: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "-"
    if isinstance(value, float):
        if key.endswith("_ms"):
            return show_time(1e6 * value)
        return show_percent(value) if key.endswith("share") else show_number(value)
    return str(value)


def _count(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def in_ms(time_ps: int) -> str:
    """Return a time in picoseconds for people: "12.3 ms"."""
    return show_time(time_ps / 1000)

"""`slackline plan pipeline`: a pipeline's order under memory caps and slow links, in time."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from slackline.cli._pipeline_input import Input, scenario_of
from slackline.cli._pipeline_report import compared, memory_curve, report, table, text
from slackline.errors import UsageError
from slackline.plan.pipeline import (
    Options,
    PipelinePlan,
    from_torch_csv,
    generate,
    names,
    to_torch_csv,
    validate,
)
from slackline.units import parse_duration_ns

__all__ = ["pipeline"]


def pipeline(
    stages: Annotated[int | None, typer.Option("--stages", "-s", help="How many stages.")] = None,
    microbatches: Annotated[
        int | None, typer.Option("--microbatches", "-m", help="How many microbatches.")
    ] = None,
    times: Annotated[
        str | None,
        typer.Option(help="F,B,W of every stage: 10ms,10ms,10ms; plain numbers are milliseconds."),
    ] = None,
    link_delay: Annotated[
        list[str] | None,
        typer.Option(help="LINK:DELAY, or LINK:FORWARD/BACKWARD; 2:60ms. May be given again."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="The cap of every stage, or one each: 8 activations, or 4GiB."),
    ] = None,
    activation: Annotated[
        str | None, typer.Option(help="An activation's size, where --memory is in bytes: 512MiB.")
    ] = None,
    freed_at_backward: Annotated[
        str | None, typer.Option(help="The share of an activation that B frees: 0.5.")
    ] = None,
    schedule: Annotated[str, typer.Option(help="One of " + ", ".join(names()) + ".")] = "auto",
    scenario: Annotated[
        Path | None, typer.Option(help="A JSON file in place of the options above.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="A plan in PyTorch's CSV, in place of --schedule.")
    ] = None,
    full_backward: Annotated[
        bool, typer.Option("--full-backward", help="gpipe, 1f1b, interleaved: B and W in one.")
    ] = False,
    stages_per_rank: Annotated[int, typer.Option(help="interleaved.")] = 2,
    effort: Annotated[float, typer.Option(help="auto: how long it searches, as a factor.")] = 1.0,
    time_budget: Annotated[
        str | None, typer.Option(help="auto: searches for so long, whatever the effort: 5s.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Figures and orders as JSON.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draws the plan: file.png or file.svg.")] = None,
    write_csv: Annotated[
        Path | None, typer.Option(help="Writes the plan as PyTorch's CSV, computations only.")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="All schedules side by side.")] = False,
    curve: Annotated[
        bool, typer.Option("--memory-curve", help="The time under each cap that makes sense.")
    ] = False,
) -> None:
    """Print a pipeline's plan in time, what it takes, and what nothing could beat."""
    given = scenario_of(
        Input(
            stages=stages,
            microbatches=microbatches,
            times=times,
            link_delays=tuple(link_delay or ()),
            memory=memory,
            activation=activation,
            freed_at_backward=freed_at_backward,
            file=scenario,
        )
    )
    effort, stop = _limits(effort, time_budget)
    options = Options(
        full_backward=full_backward, stages_per_rank=stages_per_rank, effort=effort, stop=stop
    )
    if compare or curve:
        rows = compared(given, options) if compare else memory_curve(given, options)
        key = "schedules" if compare else "memory_curve"
        print(json.dumps({key: rows}) if as_json else table(rows))
        return
    plan = _read(csv) if csv is not None else generate(schedule, given, options)
    validate(plan, given)
    if write_csv is not None:
        write_csv.write_text(to_torch_csv(plan))
    if plot is not None:
        from slackline.cli._gantt import draw

        draw(plan, given, plot)
    print(json.dumps(report(plan, given)) if as_json else text(plan, given))


def _limits(effort: float, time_budget: str | None) -> tuple[float, Callable[[], bool] | None]:
    """The effort, and whether time is up; with a budget only the clock ends the search."""
    if time_budget is None:
        return effort, None
    end_ns = time.monotonic_ns() + parse_duration_ns(time_budget)
    return math.inf, lambda: time.monotonic_ns() >= end_ns


def _read(path: Path) -> PipelinePlan:
    try:
        return from_torch_csv(path.read_text(), path.stem)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None

"""The command `slackline plan pipeline`: a pipeline's schedule under memory caps and slow links."""

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from slackline.cli._plan_pipeline._input import Input, study_of
from slackline.cli._plan_pipeline._model import cut_model, partition_report, partition_text
from slackline.cli._plan_pipeline._report import compared, memory_curve, report, table, text
from slackline.errors import UsageError
from slackline.plan.pipeline import (
    Options,
    PipelinePlan,
    Scenario,
    from_torch_csv,
    generate,
    names,
    one_each,
    placement_of,
    to_torch_csv,
    validate,
)
from slackline.units import parse_duration_ns

__all__ = ["pipeline"]


def pipeline(
    stages: Annotated[
        int | None,
        typer.Option("--stages", "-s", help="Plan for this many stages; or give --scenario."),
    ] = None,
    microbatches: Annotated[
        int | None,
        typer.Option(
            "--microbatches", "-m", help="Plan for this many microbatches; or give --scenario."
        ),
    ] = None,
    times: Annotated[
        str | None,
        typer.Option(
            help="Set the times F,B,W of every stage: 10ms,10ms,10ms; plain numbers are in ms. "
            "Stages may differ: 8/9/10/9,10,5."
        ),
    ] = None,
    link_delay: Annotated[
        list[str] | None,
        typer.Option(
            help="Delay a link: LINK:DELAY or LINK:FORWARD/BACKWARD, such as 2:60ms; plain numbers "
            "are in ms. Link i joins rank i and rank i + 1. May be repeated. Default: no delay."
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Cap the activations of every stage, or a cap for each: 8 (activations), or 4GiB. "
            "Default: no cap."
        ),
    ] = None,
    activation: Annotated[
        str | None,
        typer.Option(help="Set the size of an activation, for a --memory in bytes: 512MiB."),
    ] = None,
    freed_at_backward: Annotated[
        str | None,
        typer.Option(help="Set the share of an activation that B frees, 0 to 1. Default: 0."),
    ] = None,
    recompute: Annotated[
        str | None,
        typer.Option(help="Compute this share of a forward again before B, 0 to 1. Default: 0."),
    ] = None,
    sends: Annotated[
        str,
        typer.Option(
            help="Time the plan with these sends: asynchronous, blocking, one-queue, as "
            "slackline simulate does."
        ),
    ] = "asynchronous",
    schedule: Annotated[
        str, typer.Option(help="Plan by this schedule: " + ", ".join(names()) + ".")
    ] = "auto",
    scenario: Annotated[
        Path | None,
        typer.Option(help="Read the scenario from a JSON file, not from the options above."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Cut this model into stages: a TOML or JSON file with the model's layers."
        ),
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(help="Read the hosts for --model from this file. Default: the model's file."),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            help="Read the plan from a CSV file in PyTorch's format, not from --schedule."
        ),
    ] = None,
    full_backward: Annotated[
        bool,
        typer.Option(
            "--full-backward", help="Join B and W into one (schedules gpipe, 1f1b, interleaved)."
        ),
    ] = False,
    stages_per_rank: Annotated[
        int, typer.Option(help="Place this many stages on each rank (schedule interleaved).")
    ] = 2,
    effort: Annotated[
        float,
        typer.Option(help="Multiply the length of the search (schedule auto) by this factor."),
    ] = 1.0,
    time_budget: Annotated[
        str | None,
        typer.Option(help="Search for this long, whatever the effort (schedule auto): 5s."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print figures and orders as JSON.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the plan as a Gantt chart: file.png or file.svg.")
    ] = None,
    write_csv: Annotated[
        Path | None,
        typer.Option(help="Write the plan's computations to a CSV file in PyTorch's format."),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare all schedules in a table.")
    ] = False,
    curve: Annotated[
        bool,
        typer.Option(
            "--memory-curve", help="Print the iteration time under each useful memory cap."
        ),
    ] = False,
) -> None:
    """Print a pipeline's plan as a timetable, with its cost and a lower bound of its duration."""
    if model is not None:
        others = {
            "--times": times,
            "--link-delay": link_delay,
            "--memory": memory,
            "--activation": activation,
            "--freed-at-backward": freed_at_backward,
            "--recompute": recompute,
            "--sends": sends != "asynchronous",
            "--schedule": schedule != "auto",
            "--scenario": scenario,
            "--csv": csv,
            "--full-backward": full_backward,
            "--stages-per-rank": stages_per_rank != 2,
            "--time-budget": time_budget,
            "--compare": compare,
            "--memory-curve": curve,
        }
        found, seconds = cut_model(model, cluster, stages, microbatches, effort, others)
        _save(found.plan, found.scenario, write_csv, plot)
        if as_json:
            print(json.dumps(partition_report(found, seconds)))
        else:
            print(partition_text(found, seconds))
        return
    if cluster is not None:
        raise UsageError("--cluster needs --model")
    study = study_of(
        Input(
            stages=stages,
            microbatches=microbatches,
            times=times,
            link_delays=tuple(link_delay or ()),
            memory=memory,
            activation=activation,
            freed_at_backward=freed_at_backward,
            recompute=recompute,
            file=scenario,
        )
    )
    effort, stop = _limits(effort, time_budget)
    options = Options(
        full_backward=full_backward, stages_per_rank=stages_per_rank, effort=effort, stop=stop
    )
    if compare or curve:
        ways = [] if compare else [f"--sends {sends}"] * (sends != "asynchronous")
        if ways:
            raise UsageError(f"--memory-curve has asynchronous sends: leave out {ways[0]}")
        given = study.delayed(one_each(study.healthy.stages)) if curve else study.healthy
        rows = compared(study, options, sends) if compare else memory_curve(given, options)
        key = "schedules" if compare else "memory_curve"
        print(json.dumps({key: rows}) if as_json else table(rows))
        return
    if csv is not None:
        plan = _read(csv)
        validate(plan, study.healthy)
        given = study.delayed(plan.placement)
    else:
        known = schedule if schedule in names() else "auto"
        given = study.delayed(placement_of(known, study.healthy.stages, options))
        plan = validate(generate(schedule, given, options), given)
    _save(plan, given, write_csv, plot)
    shown = report(plan, given, sends) if as_json else text(plan, given, sends)
    print(json.dumps(shown) if as_json else shown)


def _save(plan: PipelinePlan, given: Scenario, csv: Path | None, plot: Path | None) -> None:
    """Write the plan as CSV and as a chart, each to its path unless that is None."""
    if csv is not None:
        try:
            csv.write_text(to_torch_csv(plan))
        except OSError as error:
            raise UsageError(f"cannot write {csv}: {error.strerror}") from None
    if plot is not None:
        from slackline.cli._plan_pipeline._gantt import draw

        draw(plan, given, plot)


def _limits(effort: float, time_budget: str | None) -> tuple[float, Callable[[], bool] | None]:
    """Return the search's effort and its stop condition.

    With a time budget the effort is infinite, and only the clock ends the search.
    """
    if time_budget is None:
        return effort, None
    end_ns = time.monotonic_ns() + parse_duration_ns(time_budget)
    return math.inf, lambda: time.monotonic_ns() >= end_ns


def _read(path: Path) -> PipelinePlan:
    try:
        return from_torch_csv(path.read_text(), path.stem)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None

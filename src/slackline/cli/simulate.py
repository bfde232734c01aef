"""`slackline simulate`: an experiment from a file, simulated and shown as a table or as JSON."""

import json
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slackline.errors import LinkError, PeerError, TimeoutError, UsageError
from slackline.units import show_bytes, show_number, show_rate, show_time

if TYPE_CHECKING:
    from slackline.sim import Case, Experiment

__all__ = ["simulate"]

_WIDTH = 200
"""The columns of a terminal that a table may use: long names stay in one line."""


def simulate(
    experiment: Annotated[
        Path, typer.Argument(metavar="EXPERIMENT", help="A TOML file: docs/how-to/simulate.md.")
    ],
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="Draw the costs of hosts from this file, which slackline doctor --save writes, "
            "and show P50 and P95 of the results. Default: the experiment's own costs."
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(
            help="Simulate this many runs, at least 2, each with other random numbers, and show "
            "mean and spread of their times. Default: 1, with a calibration 20."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object; times in picoseconds.")
    ] = False,
) -> int:
    """Simulate collectives, training, pipelines or an aggregation node that a file describes."""
    from slackline.sim import HostCalibration, read_experiment

    if runs is not None and runs < 2:
        raise UsageError(f"runs must be at least 2, not {runs}")
    text = _text_of(experiment)
    read = partial(read_experiment, text, experiment.name, folder=experiment.parent)
    try:
        if calibration is None:
            found = [read(run=run) for run in range(runs or 1)]
            return _run_once(found[0], as_json) if runs is None else _run_often(found, as_json)
        costs = HostCalibration.parse(_text_of(calibration), calibration.name)
        draws = [partial(costs.draw, Random(seed)) for seed in range(runs or 20)]
        return _run_drawn([read(draw) for draw in draws], as_json)
    except _CannotEndError as error:
        print(f"slackline: {error}", file=sys.stderr)
        return 1


class _CannotEndError(Exception):
    """The error of a case whose simulation cannot end."""


def _text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"cannot read {path}: it is not UTF-8") from None


def _run_once(read: "Experiment", as_json: bool) -> int:
    """Simulate an experiment, and print the results."""
    return _shown(read, [(case.name, _simulated(case)) for case in read.cases], as_json)


def _run_drawn(drawn: "list[Experiment]", as_json: bool) -> int:
    """Simulate an experiment once for each draw of its costs; print the median and the 95 %."""
    read = drawn[0]
    rows: list[tuple[str, dict[str, Any]]] = []
    for number, case in enumerate(read.cases):
        runs = [_simulated(experiment.cases[number]) for experiment in drawn]
        runs.sort(key=lambda figures: figures[_TIMES[read.kind]])
        for name, share in (("P50", 0.5), ("P95", 0.95)):
            rows.append((f"{case.name}, {name}", runs[round(share * (len(runs) - 1))]))
    return _shown(read, rows, as_json)


def _run_often(drawn: "list[Experiment]", as_json: bool) -> int:
    """Simulate an experiment with other random numbers in each run; print mean and spread."""
    read = drawn[0]
    key = _TIMES[read.kind]
    found = []
    for number, case in enumerate(read.cases):
        times = [_simulated(experiment.cases[number])[key] for experiment in drawn]
        figures = {
            "figure": key,
            "runs": len(times),
            "mean_ps": round(statistics.mean(times)),
            "deviation_ps": round(statistics.stdev(times)),
            "least_ps": min(times),
            "most_ps": max(times),
            "runs_ps": times,
        }
        found.append((case.name, figures))
    if as_json:
        return _shown(read, found, as_json)
    head = (_COLUMNS[read.kind][0], f"mean of {len(drawn)} runs", "deviation", "least", "most")
    keys = ("mean_ps", "deviation_ps", "least_ps", "most_ps")
    if read.faults:
        print(f"faults: {read.faults}")
    _print(head, [(name, tuple(_time(each[key]) for key in keys)) for name, each in found])
    return 0


def _simulated(case: "Case") -> dict[str, Any]:
    try:
        return case.simulate()
    except (LinkError, PeerError, TimeoutError) as error:
        raise _CannotEndError(f"{case.name}: {error}") from None


def _shown(read: "Experiment", rows: list[tuple[str, dict[str, Any]]], as_json: bool) -> int:
    if as_json:
        cases = [{"name": name, "figures": figures} for name, figures in rows]
        print(json.dumps({"kind": read.kind, "faults": str(read.faults), "cases": cases}))
        return 0
    if read.faults:
        print(f"faults: {read.faults}")
    _print(_COLUMNS[read.kind], [(name, _ROWS[read.kind](figures)) for name, figures in rows])
    return 0


def _print(columns: Sequence[str], rows: list[tuple[str, tuple[str, ...]]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column(columns[0])
    for name in columns[1:]:
        table.add_column(name, justify="right")
    for name, cells in rows:
        table.add_row(name, *cells)
    Console(highlight=False, soft_wrap=True, width=_WIDTH).print(table)


def _collective_row(figures: dict[str, Any]) -> tuple[str, ...]:
    bound_ps, time_ps = figures["bound_ps"], figures["time_ps"]
    compared = ("", "")
    if bound_ps is not None:
        compared = (_time(bound_ps), f"{bound_ps / time_ps if time_ps else 1.0:.0%}")
    return (
        _time(time_ps),
        *compared,
        show_bytes(max(figures["sent_bytes"])),
        "" if figures["frames"] is None else str(figures["frames"]),
        str(figures["resent_packets"]),
    )


def _training_row(figures: dict[str, Any]) -> tuple[str, ...]:
    return (
        _time(figures["mean_step_ps"]),
        _time(figures["compute_ps"]),
        _time(figures["mean_exposed_ps"]),
        show_bytes(max(figures["sent_bytes"])),
    )


def _pipeline_row(figures: dict[str, Any]) -> tuple[str, ...]:
    return (
        _time(figures["makespan_ps"]),
        _time(max(figures["pipeline_ps"])),
        f"{max(figures['bubble_share']):.0%}",
        _time(max(figures["reduced_ps"])),
        show_bytes(max(figures["sent_bytes"])),
    )


def _iteration_row(figures: dict[str, Any]) -> tuple[str, ...]:
    return (
        _time(figures["time_ps"]),
        f"{figures['bubble_share']:.0%}",
        _time(max(figures["blocked_ps"])),
        show_number(figures["most_activations"]),
    )


def _job_row(figures: dict[str, Any]) -> tuple[str, ...]:
    names = ("time_ps", "healthy_ps", "slowest_ps", "restart_ps")
    return tuple(_time(figures[name]) for name in names)


def _node_row(figures: dict[str, Any]) -> tuple[str, ...]:
    return (
        _time(figures["first_ps"]),
        _time(figures["last_ps"]),
        show_rate(figures["bits_per_second"]),
        _time(figures["starved_ps"]),
        str(figures["most_buffered"]),
    )


def _time(time_ps: int) -> str:
    return show_time(time_ps / 1000)


_TIMES = {
    "collective": "time_ps",
    "training": "mean_step_ps",
    "pipeline": "makespan_ps",
    "iteration": "time_ps",
    "job": "time_ps",
    "node": "last_ps",
}
"""The figure of which runs have a mean and a spread, and by which they are ordered."""

_COLUMNS = {
    "collective": ("plan", "time", "lower bound", "share", "most sent", "frames", "resent"),
    "training": ("plan, policy", "step", "computation", "exposed", "most sent"),
    "pipeline": ("schedule, plan", "time", "pipeline", "bubble", "reduced", "most sent"),
    "iteration": ("runtime, network", "time", "bubble", "blocked", "activations"),
    "job": ("runtime", "time", "healthy iteration", "slowest iteration", "restart"),
    "node": ("message, onset, senders", "first sum", "last sum", "rate", "starved", "buffered"),
}
_ROWS = {
    "collective": _collective_row,
    "training": _training_row,
    "pipeline": _pipeline_row,
    "iteration": _iteration_row,
    "job": _job_row,
    "node": _node_row,
}

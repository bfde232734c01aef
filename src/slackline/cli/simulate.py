"""`slackline simulate`: an experiment from a file, simulated and shown as a table or as JSON."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from slackline.errors import LinkError, PeerError, TimeoutError, UsageError
from slackline.units import format_bytes

__all__ = ["simulate"]

_WIDTH = 200
"""The columns of a terminal that a table may use: long names stay in one line."""
_UNITS = (("s", 10**12), ("ms", 10**9), ("us", 10**6), ("ns", 10**3))


def simulate(
    experiment: Annotated[
        Path, typer.Argument(metavar="EXPERIMENT", help="A TOML file: docs/how-to/simulate.md.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object; times in picoseconds.")
    ] = False,
) -> int:
    """Simulate collectives, training, pipelines or an aggregation node that a file describes."""
    from slackline.sim import read_experiment

    try:
        text = experiment.read_text()
    except OSError as error:
        raise UsageError(f"cannot read {experiment}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"cannot read {experiment}: it is not UTF-8") from None
    read = read_experiment(text, experiment.name)
    rows = []
    for case in read.cases:
        try:
            rows.append((case.name, case.simulate()))
        except (LinkError, PeerError, TimeoutError) as error:
            print(f"slackline: {case.name}: {error}", file=sys.stderr)
            return 1
    if as_json:
        cases = [{"name": name, "figures": figures} for name, figures in rows]
        print(json.dumps({"kind": read.kind, "faults": str(read.faults), "cases": cases}))
        return 0
    if read.faults:
        print(f"faults: {read.faults}")
    _print(read.kind, rows)
    return 0


def _print(kind: str, rows: list[tuple[str, dict[str, Any]]]) -> None:
    from rich.console import Console
    from rich.table import Table

    columns = _COLUMNS[kind]
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column(columns[0])
    for name in columns[1:]:
        table.add_column(name, justify="right")
    for name, figures in rows:
        table.add_row(name, *_ROWS[kind](figures))
    Console(highlight=False, soft_wrap=True, width=_WIDTH).print(table)


def _collective_row(figures: dict[str, Any]) -> tuple[str, ...]:
    bound_ps, time_ps = figures["bound_ps"], figures["time_ps"]
    compared = ("", "")
    if bound_ps is not None:
        compared = (_time(bound_ps), f"{bound_ps / time_ps if time_ps else 1.0:.0%}")
    return (
        _time(time_ps),
        *compared,
        format_bytes(max(figures["sent_bytes"])),
        "" if figures["frames"] is None else str(figures["frames"]),
        str(figures["resent_packets"]),
    )


def _training_row(figures: dict[str, Any]) -> tuple[str, ...]:
    return (
        _time(figures["mean_step_ps"]),
        _time(figures["compute_ps"]),
        _time(figures["mean_exposed_ps"]),
        format_bytes(max(figures["sent_bytes"])),
    )


def _pipeline_row(figures: dict[str, Any]) -> tuple[str, ...]:
    return (
        _time(figures["makespan_ps"]),
        _time(max(figures["pipeline_ps"])),
        f"{max(figures['bubble_share']):.0%}",
        _time(max(figures["reduced_ps"])),
        format_bytes(max(figures["sent_bytes"])),
    )


def _iteration_row(figures: dict[str, Any]) -> tuple[str, ...]:
    return (
        _time(figures["time_ps"]),
        f"{figures['bubble_share']:.0%}",
        _time(max(figures["blocked_ps"])),
        f"{figures['most_activations']:g}",
    )


def _job_row(figures: dict[str, Any]) -> tuple[str, ...]:
    names = ("time_ps", "healthy_ps", "slowest_ps", "restart_ps")
    return tuple(_time(figures[name]) for name in names)


def _node_row(figures: dict[str, Any]) -> tuple[str, ...]:
    return (
        _time(figures["first_ps"]),
        _time(figures["last_ps"]),
        f"{figures['bits_per_second'] / 1e9:.4g} Gbit/s",
        _time(figures["starved_ps"]),
        str(figures["most_buffered"]),
    )


def _time(time_ps: int) -> str:
    """Return a time with four digits in the largest unit that it has one of: "1.234 ms"."""
    for unit, size in _UNITS:
        if time_ps >= size:
            return f"{time_ps / size:.4g} {unit}"
    return f"{time_ps} ps"


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

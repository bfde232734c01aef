"""The result of a search: a file of settings, a table of the trials, and JSON."""

import platform
import shlex
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

from slackline import __version__
from slackline.cli._job._config import KEYS, config_text
from slackline.cli._job._limits import usable_cores
from slackline.cli._tune._candidates import Candidate
from slackline.cli._tune._search import PAIRS, Attempt, Verdict
from slackline.cli._tune._steps import WARM_UP, Measure
from slackline.records import processor_name
from slackline.units import show_percent, show_time

__all__ = ["attempts_table", "described", "gain_text", "result_json", "result_text"]


def described() -> str:
    """Return this machine as a phrase: its name, processor, cores, kernel and versions."""
    return (
        f"{platform.node()}, {processor_name()}, {usable_cores()} usable cores, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, "
        f"torch {version('torch')}, slackline {__version__}"
    )


def gain_text(verdict: Verdict) -> str:
    """Return the measured gain with its spread over the pairs of fresh trials."""
    gain, lowest, highest = (
        show_percent(1 - 1 / each) for each in (verdict.gain, verdict.lowest, verdict.highest)
    )
    return f"the step is shorter by {gain} ({lowest} to {highest} in {PAIRS} pairs of fresh trials)"


def result_text(
    verdict: Verdict,
    base: Candidate,
    *,
    command: Sequence[str],
    ranks: int,
    steps: int,
    measure: Measure,
    environment: Mapping[str, str],
    today: date,
) -> str:
    """Return the text of the file of settings, with the measurements as comments.

    `base` has the settings that were fixed in all trials, of the defaults too, and `environment`
    the variables of the user, of which those of slackline are stated.
    """
    fixed = [f"{name}={environment[name]}" for name in sorted(KEYS.values()) if name in environment]
    held = f" Every trial, with the defaults too, had {base.exact()}." if base.settings else ""
    comments = [
        f"Written by: {shlex.join(command)}",
        f"Date and machine: {today.isoformat()}, {described()}",
        f"A trial: {WARM_UP} steps of warm-up, then the median of {steps}; {measure}.{held}",
    ]
    if fixed:
        comments.append(f"Fixed by the environment: {' '.join(fixed)}")
    settings: dict[str, str | int] = {"ranks": ranks}
    if verdict.best.settings:
        comments += [f"Gain: {gain_text(verdict)}.", f"Verdict: {verdict.reason}."]
        settings |= {**base.settings, **verdict.best.settings}
    else:
        comments += [
            "No confirmed gain: the defaults stay, and this file sets the number of ranks alone.",
            f"Verdict: {verdict.reason}.",
        ]
    return config_text(settings, comments)


def attempts_table(attempts: Sequence[Attempt]) -> Table:
    """Return a table with a row for each trial."""
    table = Table(caption="the median step of each trial")
    for column in ("trial", "settings", "step time"):
        table.add_column(column, justify="right" if column == "step time" else "left")
    for each in attempts:
        took = each.reason if each.step_ns is None else show_time(each.step_ns)
        table.add_row(each.stage, str(each.candidate), took)
    return table


def result_json(
    verdict: Verdict,
    attempts: Sequence[Attempt],
    base: Candidate,
    *,
    path: Path,
    ranks: int,
    steps: int,
    measure: Measure,
) -> Mapping[str, Any]:
    """Return the result as an object for JSON; times are nanoseconds."""
    return {
        "file": str(path),
        "ranks": ranks,
        "machine": described(),
        "steps": steps,
        "measure": str(measure),
        "fixed": dict(base.settings),
        "settings": dict(verdict.best.settings),
        "confirmed": bool(verdict.best.settings),
        "tried": dict(verdict.tried.settings),
        "gain": verdict.gain,
        "lowest": verdict.lowest,
        "highest": verdict.highest,
        "reason": verdict.reason,
        "trials": [
            {
                "stage": each.stage,
                "settings": dict(each.candidate.settings),
                "step_ns": each.step_ns,
                "reason": each.reason,
            }
            for each in attempts
        ],
    }

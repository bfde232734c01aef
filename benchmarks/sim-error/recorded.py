"""Measurements that an earlier run has printed with `--json`, compared with new simulations.

Each file has its own calibration: the measured times of its two calibration cells. Files that an
earlier version has printed have no pauses; calls then follow each other without a pause.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from _harness.summary import Summary
from cases import (
    AGGREGATOR,
    CALIBRATION,
    CELLS,
    COLLECTIVES,
    LONG,
    METHODS,
    MODELS,
    QUICK_CELLS,
    SHORT,
    STAR_CELLS,
    TRAINING,
    Cell,
)
from predictions import Calibration, Fitted, calibrate, simulated_ps, simulated_step_ps
from results import Comparison

from slackline.errors import UsageError

PARTS = (COLLECTIVES, TRAINING, AGGREGATOR)
"""The parts that can be simulated again: their simulations need the calibration alone."""

Simulate = Callable[[Calibration, int], int]
"""The simulated picoseconds with a calibration and a pause in picoseconds."""


def _cell(cell: Cell) -> Simulate:
    return lambda calibration, pause_ps: simulated_ps(cell, calibration, pause_ps)


def _simulations() -> dict[tuple[str, str], Simulate]:
    """Return the simulation of each case by its part and its name."""
    found: dict[tuple[str, str], Simulate] = {}
    for part, cells in (
        (COLLECTIVES, {*CELLS, *QUICK_CELLS}),
        (AGGREGATOR, STAR_CELLS),
    ):
        found |= {(part, str(cell)): _cell(cell) for cell in cells}
    for model in MODELS:
        for method in METHODS:
            found[TRAINING, f"{method}, {model.name}"] = (
                lambda calibration, _, model=model, method=method: simulated_step_ps(
                    model, method, calibration
                )
            )
    return found


def compare_recorded(
    paths: Sequence[Path], only: str | None = None
) -> tuple[list[Comparison], list[str]]:
    """Return new comparisons of the recorded cases, and a note for each file.

    `only` is the only part that is compared; None stands for all parts. Of a case that several
    files have, the one in the last file counts. Raises UsageError that names the file for a file
    that is no output of this benchmark, and for a case that does not exist.
    """
    found: dict[tuple[str, str], Comparison] = {}
    notes = []
    for path in paths:
        calibration, comparisons = _read(path, PARTS if only is None else (only,))
        found |= {(each.part, each.case): each for each in comparisons}
        notes.append(
            f"{path.name}: calibration {calibration.rate_bps / 1e6:.2f} Mbit/s, "
            f"{calibration.latency_ps / 1e6:.1f} us a cable"
        )
    return list(found.values()), notes


def _read(path: Path, parts: Sequence[str]) -> tuple[Calibration, list[Comparison]]:
    try:
        rows = json.loads(path.read_text())["rows"]
        measured = {(row["part"], row["case"]): row for row in rows if "case" in row}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is not the JSON of a run of sim-error") from None
    short, long = (_fitted(path, measured, cell) for cell in (SHORT, LONG))
    calibration = calibrate(short, long)
    simulations = _simulations()
    comparisons = []
    for (part, case), row in measured.items():
        if part not in PARTS or part not in parts:
            continue
        if (part, case) not in simulations:
            raise UsageError(f"{path} has a case that does not exist: {part}, {case!r}")
        simulated = simulations[part, case](calibration, _pause_ps(row))
        comparisons.append(_comparison(path, row, simulated))
    return calibration, comparisons


def _fitted(
    path: Path, measured: Mapping[tuple[str, str], Mapping[str, Any]], cell: Cell
) -> Fitted:
    row = measured.get((CALIBRATION, str(cell)))
    if row is None:
        raise UsageError(f"{path} lacks the calibration's case {str(cell)!r}")
    return Fitted(time_ps=round(_number(path, row, "median_us") * 1e6), pause_ps=_pause_ps(row))


def _pause_ps(row: Mapping[str, Any]) -> int:
    return round(row.get("pause_us", 0) * 1e6)


def _comparison(path: Path, row: Mapping[str, Any], simulated_ps: int) -> Comparison:
    repeat, pause_us = row.get("repeat_percent"), row.get("pause_us")
    return Comparison(
        part=row["part"],
        case=row["case"],
        summary=Summary(
            median_us=_number(path, row, "median_us"),
            p10_us=_number(path, row, "p10_us"),
            p90_us=_number(path, row, "p90_us"),
            rounds=int(_number(path, row, "rounds")),
        ),
        repeat_percent=repeat,
        simulated_s=simulated_ps / 1e12,
        pause_s=None if pause_us is None else pause_us / 1e6,
    )


def _number(path: Path, row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise UsageError(
            f"{path}: {name} of {row['part']}, {row['case']!r} must be a positive number, "
            f"not {value!r}"
        )
    return value

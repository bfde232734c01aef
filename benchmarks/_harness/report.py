"""A benchmark's results: rows, targets, and their output as JSON or tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.console import Console
from rich.table import Table

from .machine import commit
from .options import Options

Scalar = str | int | float


@dataclass(frozen=True, kw_only=True)
class Row:
    """A measurement, or the reason why it was not made."""

    labels: Mapping[str, Scalar]
    """The labels of the measurement: `{"ranks": 2, "bytes": 4096, ...}`."""

    values: Mapping[str, Scalar] = field(default_factory=dict)
    """The measured values; the unit is in the name (`median_us`). Empty if skipped."""

    series: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Measured values in order of time, by name; the unit is in the name (`ended_ms`)."""

    skipped: str | None = None
    """The reason why nothing was measured ("mpirun is not installed"), or None."""

    def __post_init__(self) -> None:
        if bool(self.values) == (self.skipped is not None):
            raise ValueError(f"a row has either values or a reason: {dict(self.labels)}")

    def as_json(self) -> dict[str, Scalar | list[float]]:
        reason = {} if self.skipped is None else {"skipped": self.skipped}
        series = {name: list(values) for name, values in self.series.items()}
        return {**self.labels, **self.values, **series, **reason}


@dataclass(frozen=True, kw_only=True)
class Target:
    """A bound on one measured number; whether the bound is met is computed, never given."""

    name: str
    target: float
    measured: float | None
    """The measured number; None if its row was skipped."""

    bound: Literal["at least", "at most"] = "at least"

    @property
    def met(self) -> bool | None:
        """Whether the bound is met; None if nothing was measured."""
        if self.measured is None:
            return None
        if self.bound == "at least":
            return self.measured >= self.target
        return self.measured <= self.target

    def as_json(self) -> dict[str, Scalar | bool | None]:
        return {
            "name": self.name,
            "bound": self.bound,
            "target": self.target,
            "measured": self.measured,
            "met": self.met,
        }


@dataclass(frozen=True, kw_only=True)
class Report:
    """The whole result of a benchmark."""

    rows: Sequence[Row]
    targets: Sequence[Target]
    machine: Mapping[str, Scalar]
    """The result of `describe_machine()`, taken before the benchmark loads the machine."""
    commit: str = field(default_factory=commit)

    def as_json(self) -> str:
        """Return the whole result as one JSON object on one line."""
        return json.dumps(
            {
                "machine": dict(self.machine),
                "commit": self.commit,
                "rows": [row.as_json() for row in self.rows],
                "targets": [target.as_json() for target in self.targets],
            }
        )

    def print(self, tables: Sequence[Table], options: Options, notes: Sequence[str] = ()) -> None:
        """Print to standard output: JSON, or the machine, `tables`, the targets and `notes`."""
        if options.json:
            print(self.as_json())
            return
        # The console is wide enough for every table; a narrow terminal wraps lines and cuts no
        # figures.
        console = Console(width=160, soft_wrap=True)
        facts = ", ".join(f"{name} {value}" for name, value in self.machine.items())
        console.print(f"{facts}; commit {self.commit}", highlight=False)
        for table in (*tables, self._target_table()):
            console.print(table)
        for note in notes:
            console.print(note, highlight=False)

    def _target_table(self) -> Table:
        table = Table("target", "bound", "measured", "met", title="targets")
        words = {True: "yes", False: "NO", None: "skipped"}
        for target in self.targets:
            measured = "-" if target.measured is None else f"{target.measured:.2f}"
            bound = f"{target.bound} {target.target:g}"
            table.add_row(target.name, bound, measured, words[target.met])
        return table

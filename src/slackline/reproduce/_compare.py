"""The comparison of published figures with those of an experiment."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slackline.errors import UsageError
from slackline.reproduce._folder import Folder
from slackline.reproduce._published import UNITS, PublishedRow, PublishedTable
from slackline.sim import Figures, read_experiment

__all__ = ["TOLERANCE", "ComparedRow", "Comparison", "compare"]

TOLERANCE = 0.05
"""The largest relative error of a figure whose parameters are published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """A row of a table with the figure of the experiment, in the unit of the row."""

    row: PublishedRow
    ours: float

    @property
    def error(self) -> float | None:
        """The relative error against the measured figure; None where there is none.

        The measured figure is the average of the artifact's iterations, or else the printed figure.
        """
        measured = self.row.measured
        return None if measured is None else self.ours / measured - 1

    @property
    def standard_errors(self) -> float | None:
        """The error in standard errors of the artifact's average; None where there is none."""
        row = self.row
        if row.average is None or row.standard_error is None:
            return None
        return (self.ours - row.average) / row.standard_error

    @property
    def deviates(self) -> bool:
        """Whether the parameters are published and the error is above the tolerance."""
        return self.row.given and self.error is not None and abs(self.error) > TOLERANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A published table beside the simulated figures of its experiment."""

    table: PublishedTable
    parameters: Mapping[str, Any]
    """All keys of the experiment's file."""
    rows: tuple[ComparedRow, ...]

    @property
    def predicted(self) -> tuple[ComparedRow, ...]:
        """The rows to which no parameter is fitted: those that deviate first, the worst of all
        first.
        """
        found = [each for each in self.rows if each.error is not None and each.row.given]
        return tuple(
            sorted(found, key=lambda each: -abs(each.error or 0) if each.deviates else 0.0)
        )

    @property
    def fitted(self) -> tuple[ComparedRow, ...]:
        """The rows to which a parameter is fitted, or whose parameters are assumed."""
        return tuple(each for each in self.rows if each.error is not None and not each.row.given)

    @property
    def unpublished(self) -> tuple[ComparedRow, ...]:
        """The rows without a published figure."""
        return tuple(each for each in self.rows if each.error is None)


def compare(table: PublishedTable, folder: Folder) -> Comparison:
    """Simulate the cases that a table names; return their figures beside the published figures.

    Raises UsageError that names the file, and the case or the figure that the experiment lacks;
    LinkError, PeerError and TimeoutError where a simulation cannot end.
    """
    text = folder.experiment(table)
    read = read_experiment(text, table.experiment, folder=folder.experiments)
    cases = {case.name: case for case in read.cases}
    named = [row.case for row in table.rows]
    named += [row.against for row in table.rows if row.against is not None]
    for name in named:
        if name not in cases:
            known = "; ".join(cases)
            raise UsageError(
                f'{table.name}.toml: {table.experiment} has no case "{name}"; it has {known}'
            )
    figures = {name: cases[name].simulate() for name in dict.fromkeys(named)}
    return Comparison(
        table=table,
        parameters=tomllib.loads(text),
        rows=tuple(ComparedRow(row=row, ours=_value(table, row, figures)) for row in table.rows),
    )


def _value(table: PublishedTable, row: PublishedRow, figures: Mapping[str, Figures]) -> float:
    """Return a row's figure in the unit of the row."""
    value = _figure(table, row.case, row.figure, figures)
    if row.against is not None:
        other = _figure(table, row.against, row.figure, figures)
        if row.derived == "ratio":
            if not value:
                raise UsageError(f'{table.name}.toml: {row.figure} of "{row.case}" is 0')
            return other / value
        if not other:
            raise UsageError(f'{table.name}.toml: {row.figure} of "{row.against}" is 0')
        value = 1 - value / other
    return float(value / UNITS[row.unit])


def _figure(
    table: PublishedTable, case: str, name: str, figures: Mapping[str, Figures]
) -> int | float:
    value = figures[case].get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        known = ", ".join(
            key for key, each in figures[case].items() if isinstance(each, int | float)
        )
        raise UsageError(
            f'{table.name}.toml: figure: "{case}" has no number "{name}"; it has {known}'
        )
    return value

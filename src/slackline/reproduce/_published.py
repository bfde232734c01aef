"""A table of published figures as a TOML file.

version = 1
title = "Iteration time, by the delay of the last link"
source = "arXiv 2504.19232, the artifact's logs"
published_method = "measured"             of the published figures
experiment = "pipeline_last_link.toml"    in the folder experiments/
method = "simulated"                      of our figures; or "model"
figure = "makespan_ps"                    of the experiment's cases
unit = "ms"

[[row]]
case = "1F1B, last link 30ms"             of the experiment
published = 1580                          as the publication prints it
average = 1579.9                          of the iterations in its artifact
standard_error = 1.5                      of this average
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from slackline._toml import Table, boolean, integer, one_of, text
from slackline.errors import UsageError

__all__ = ["UNITS", "VERSION", "PublishedRow", "PublishedTable", "read_table"]

VERSION = 1
"""The version of the tables' format."""
UNITS: Mapping[str, Fraction] = MappingProxyType(
    {
        "us": Fraction(10**6),
        "ms": Fraction(10**9),
        "s": Fraction(10**12),
        "min": Fraction(60 * 10**12),
        "Gbit/s": Fraction(10**9),
        "frames": Fraction(1),
        "%": Fraction(1, 100),
        "x": Fraction(1),
    }
)
"""The factor from each unit of a table to the simulator's (ps, bits per second, counts, shares)."""
_METHODS = ("simulated", "model")
_PUBLISHED_METHODS = ("measured", *_METHODS)
_DERIVED = ("reduction", "ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """A row of a table: a case of the experiment, and the published figure if there is one."""

    label: str
    """The name of the row; by default the name of the case."""
    case: str
    figure: str
    """The name of the simulator's figure."""
    against: str | None
    """The case with which `case` is compared, for a row that shows a ratio or a reduction."""
    derived: str
    """"ratio": the figure of `against` over that of `case`; "reduction": the share of the figure of
    `against` that `case` saves."""
    published: float | None
    """The figure as the publication prints it."""
    average: float | None
    """The average of the iterations in the publication's artifact, if it has them."""
    standard_error: float | None
    """The standard error of `average`."""
    given: bool
    """Whether all parameters of this row come from the source or from other rows; otherwise some
    parameters are fitted to this row or assumed."""
    unit: str

    @property
    def measured(self) -> float | None:
        """The figure to compare with: the average of the iterations, or else the printed one."""
        return self.published if self.average is None else self.average


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """Published figures and the experiment that reproduces them."""

    name: str
    """The name of the file, without its ending."""
    title: str
    source: str
    """The publication and the place in it, or this project's own measurement."""
    published_method: str
    """The origin of the published figures: "measured", or a value of `method`; empty if there are
    no published figures."""
    experiment: str
    """The name of the experiment's file."""
    method: str
    """"simulated": discrete events; "model": a formula or a recurrence over frames."""
    explanation: str
    """The reasons for deviations, and the parameters that were fitted or assumed."""
    plot: str
    """"bars": a bar for each row. "lines": a label has two parts, as in "1F1B, 30ms"; there is one
    line for each first part, over the second parts."""
    rows: tuple[PublishedRow, ...]


def read_table(content: str, name: str) -> PublishedTable:
    """Parse a table from TOML text; errors name the file by `name`.

    Raises UsageError that names the file, the table and the key of a wrong or missing value.
    """
    top = Table.parse(content, name)
    version = top.take("version", integer)
    if version != VERSION:
        raise UsageError(f"{name}: version must be {VERSION}, not {version}")
    title, source = top.take("title", text), top.take("source", text)
    experiment = top.take("experiment", text)
    method = top.take("method", one_of(*_METHODS))
    figure, unit = top.take("figure", text), top.take("unit", one_of(*UNITS))
    explanation = top.take("explanation", text, "")
    plot = top.take("plot", one_of("bars", "lines"), "bars")
    given = top.take("given", boolean, False)
    rows = tuple(_row(each, figure, unit, given) for each in top.tables("row"))
    if not rows:
        raise top.wrong(UsageError("at least one [[row]] is needed"))
    unpublished = all(row.published is None and row.average is None for row in rows)
    published_method = top.take(
        "published_method", one_of(*_PUBLISHED_METHODS), "" if unpublished else None
    )
    top.end()
    units = {row.unit for row in rows}
    if plot == "lines" and len(units) > 1:
        shown = ", ".join(sorted(units))
        raise top.wrong(UsageError(f'plot = "lines" needs rows of one unit, not {shown}'))
    return PublishedTable(
        name=name.removesuffix(".toml"),
        title=title,
        source=source,
        published_method=published_method,
        experiment=experiment,
        method=method,
        explanation=explanation,
        plot=plot,
        rows=rows,
    )


def _row(table: Table, figure: str, unit: str, given: bool) -> PublishedRow:
    case = table.take("case", text)
    against = table.take_if_there("against", text)
    derived = table.take("as", one_of(*_DERIVED), "reduction") if against is not None else ""
    found = PublishedRow(
        label=table.take("label", text, case),
        case=case,
        figure=table.take("figure", text, figure),
        against=against,
        derived=derived,
        published=table.take_if_there("published", _number),
        average=table.take_if_there("average", _number),
        standard_error=table.take_if_there("standard_error", _number),
        given=table.take("given", boolean, given),
        unit={"": table.take("unit", one_of(*UNITS), unit), "reduction": "%", "ratio": "x"}[
            derived
        ],
    )
    table.end()
    if (found.average is None) != (found.standard_error is None):
        raise table.wrong(UsageError("average and standard_error belong together: give both"))
    return found


def _number(value: Any) -> float:
    """Return a positive number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UsageError(f"must be a positive number, not {value!r}")
    return float(value)

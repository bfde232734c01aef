"""The results of a run: rows for JSON, targets, and tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from _harness.report import Row, Scalar, Target
from _harness.summary import percentile
from cases import (
    GBIT,
    PUBLISHED_GLOO,
    SIZES,
    SYSTEMS,
    TWO_NIC_RATES,
    TWO_NICS_OVER_ONE,
    WIRE_TARGETS,
    Size,
    Wire,
)
from rich.table import Table

MODES = ("streamed", "one at a time")


@dataclass(frozen=True, kw_only=True)
class Key:
    """The wire, message size, library and way of calling that a measured percentage belongs to."""

    wire: Wire
    size: Size
    system: str
    mode: str
    """The way of calling: a member of MODES."""


@dataclass(kw_only=True)
class Results:
    """The measurements of all contestants so far."""

    percents: dict[Key, list[float]] = field(default_factory=dict)
    """The percentages of the ideal wire, one value for each round."""
    ceilings: dict[tuple[Wire, str], list[float]] = field(default_factory=dict)
    """The percentages that plain TCP reached, by wire and traffic pattern."""
    events: list[Row] = field(default_factory=list)
    """The measurements of a faulty wire."""
    event_targets: list[Target] = field(default_factory=list)
    recorded: list[Row] = field(default_factory=list)
    """The series of which each allreduce has its times in the JSON object."""
    skipped: list[Row] = field(default_factory=list)

    def used(self, wire: Wire, size: Size, system: str, mode: str, percent: float) -> None:
        """Add the percentage of the wire that a library used in one turn."""
        key = Key(wire=wire, size=size, system=system, mode=mode)
        self.percents.setdefault(key, []).append(percent)

    def ceiling(self, wire: Wire, pattern: str, percent: float) -> None:
        """Add the percentage of the wire that plain TCP reached with a traffic pattern."""
        self.ceilings.setdefault((wire, pattern), []).append(percent)

    def event(self, what: str, values: dict[str, Scalar], **labels: Scalar) -> None:
        """Add the figures of a measurement on a faulty wire."""
        self.events.append(Row(labels={"what": what, **labels}, values=_rounded(values)))

    def target(
        self, name: str, target: float, measured: float | None, *, most: bool = False
    ) -> None:
        """Add the target of a measurement on a faulty wire; `most` makes it an upper bound."""
        bound = "at most" if most else "at least"
        value = None if measured is None else round(measured, 3)
        self.event_targets.append(Target(name=name, target=target, measured=value, bound=bound))

    def skip(self, what: str, reason: str) -> None:
        """Record that something was not measured, and the reason."""
        self.skipped.append(Row(labels={"what": what}, skipped=reason))

    def median(self, wire: Wire, size: Size, system: str, mode: str = "streamed") -> float | None:
        """Return the median percentage of the wire; None if it was not measured."""
        sample = self.percents.get(Key(wire=wire, size=size, system=system, mode=mode))
        return percentile(sample, 50) if sample else None

    def rows(self) -> list[Row]:
        rows = [
            Row(
                labels={"what": "plain TCP", **_wire(wire), "pattern": pattern},
                values=_spread(sample),
            )
            for (wire, pattern), sample in self.ceilings.items()
        ]
        for key, sample in self.percents.items():
            labels: dict[str, Scalar] = {
                "what": "all_reduce",
                **_wire(key.wire),
                "bytes": key.size.nbytes,
                "system": key.system,
                "mode": key.mode,
            }
            rows.append(Row(labels=labels, values=_spread(sample)))
        return [*rows, *self.events, *self.recorded, *self.skipped]

    def targets(self) -> list[Target]:
        targets = []
        for gbit, bounds in WIRE_TARGETS.items():
            for size, bound in zip(SIZES, bounds, strict=True):
                wire = Wire(rate=gbit * GBIT)
                measured = self.median(wire, size, "slackline tcp")
                targets.append(
                    Target(
                        name=f"{wire}, {size.name}, slackline tcp streamed: % of the wire",
                        target=bound,
                        measured=None if measured is None else round(measured, 2),
                    )
                )
        nics = [self._two_nics(rate) for rate in TWO_NIC_RATES]
        return [*targets, *nics, *self.event_targets]

    def tables(self) -> list[Table]:
        """Return a table for each wire, with one line a size, and a table of the faulty wires."""
        wires = list(dict.fromkeys(key.wire for key in self.percents))
        return [*(self._wire_table(wire) for wire in wires), self._event_table()]

    def _two_nics(self, rate: int) -> Target:
        """Return the target for the ratio of the throughputs of two NICs and of one NIC.

        The percentages for two NICs refer to a wire of twice the rate.
        """
        size, wire = SIZES[-1], Wire(rate=rate, nics=2)
        one, two = (
            self.median(wire, size, f"slackline tcp, {nics}") for nics in ("one NIC", "both NICs")
        )
        measured = None if one is None or two is None else round(2 * two / one, 3)
        return Target(
            name=f"{wire}, {size.name}, slackline tcp streamed: both NICs over one",
            target=TWO_NICS_OVER_ONE,
            measured=measured,
        )

    def _wire_table(self, wire: Wire) -> Table:
        present = [key for key in self.percents if key.wire == wire]
        systems = list(dict.fromkeys(key.system for key in present))
        published = PUBLISHED_GLOO.get(wire.rate // GBIT) if wire.nics == 1 else None
        table = Table(
            *("size", "mode", *systems),
            title=f"{wire}, 4 hosts: % of the ideal wire, median (p10-p90); {self._plain(wire)}",
        )
        if published is not None and set(systems) & set(SYSTEMS):
            table.add_column("gloo, published")
        for size in dict.fromkeys(key.size for key in present):
            for mode in MODES:
                keys = [Key(wire=wire, size=size, system=s, mode=mode) for s in systems]
                samples = [self.percents.get(key) for key in keys]
                if not any(samples):
                    continue
                cells = ["-" if sample is None else _text(sample) for sample in samples]
                if published is not None:
                    known = f"{published[SIZES.index(size)]}" if mode == MODES[1] else ""
                    cells.append(known)
                table.add_row(size.name, mode, *cells)
        return table

    def _plain(self, wire: Wire) -> str:
        plain = [
            f"{name} {_text(s)}" for (where, name), s in self.ceilings.items() if where == wire
        ]
        return f"plain TCP: {', '.join(plain)}" if plain else "no plain TCP"

    def _event_table(self) -> Table:
        table = Table("what", "figures", title="when something is wrong with the wire")
        for row in (*self.events, *self.skipped):
            figures = ", ".join(f"{name} {value}" for name, value in row.values.items())
            labels = ", ".join(str(label) for label in row.labels.values())
            table.add_row(labels, f"skipped: {row.skipped}" if row.skipped else figures)
        return table


def _wire(wire: Wire) -> dict[str, Scalar]:
    return {"wire": str(wire), "switch": wire.switch}


def _spread(sample: Sequence[float]) -> dict[str, Scalar]:
    names = {"median_percent": 50, "p10_percent": 10, "p90_percent": 90}
    values: dict[str, Scalar] = {
        name: round(percentile(sample, percent), 2) for name, percent in names.items()
    }
    return {**values, "rounds": len(sample)}


def _text(sample: Sequence[float]) -> str:
    median, low, high = (percentile(sample, percent) for percent in (50, 10, 90))
    return f"{median:.1f} ({low:.1f}-{high:.1f})"


def _rounded(values: dict[str, Scalar]) -> dict[str, Scalar]:
    return {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in values.items()
    }

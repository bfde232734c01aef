"""The results of a run: rows for JSON and tables; rows that beat slackline over TCP come first."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from _harness.report import Row, Scalar
from _harness.summary import percentile
from _harness.usage import Usage
from cases import CELLS, Cell, Contestant, Network
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The measurements of one turn of one contestant."""

    usages: list[Usage]
    """The usage of one operation, by rank."""
    calls: int
    """The number of operations in the turn."""
    softirq_s: float
    """The time of the whole machine in soft interrupts during the turn, in seconds."""
    window_s: float
    """The length of the turn in seconds, with filling and checking of buffers."""
    packets: int
    """The packets that all ranks' interfaces sent."""

    @property
    def seconds(self) -> float:
        """The time of an operation at the slowest rank, in seconds."""
        return max(usage.seconds for usage in self.usages)

    @property
    def idle_percent(self) -> float:
        """The share of the time in which the machine's cores were idle, in percent of all cores."""
        idle_s = sum(usage.idle_s for usage in self.usages)
        return 100 * idle_s / (sum(usage.seconds for usage in self.usages) * os.cpu_count())


@dataclass(frozen=True, kw_only=True)
class Idle:
    """A time in which no contestant had any work."""

    seconds: float
    softirq_s: float


Key = tuple[Cell, Contestant]
Figure = Callable[[Turn], float]


@dataclass(kw_only=True)
class Results:
    """The measurements of all contestants so far."""

    turns: dict[Key, list[Turn]] = field(default_factory=dict)
    idle: dict[Network, list[Idle]] = field(default_factory=dict)
    skipped: list[Row] = field(default_factory=list)

    def record(self, cell: Cell, contestant: Contestant, turn: Turn) -> None:
        """Add the measurements of one contestant's turn."""
        self.turns.setdefault((cell, contestant), []).append(turn)

    def record_idle(self, network: Network, idle: Idle) -> None:
        """Add a measurement of the machine while no contestant works."""
        self.idle.setdefault(network, []).append(idle)

    def skip(self, cell: Cell, contestant: Contestant, reason: str) -> None:
        """Record that a contestant was not measured with a size on a network, and the reason."""
        self.skipped.append(Row(labels=_labels(cell, contestant), skipped=reason))

    def idle_softirq(self, network: Network) -> float:
        """Return the seconds of soft interrupts in a second without work; 0 if not measured."""
        idle = self.idle.get(network, [])
        seconds = sum(each.seconds for each in idle)
        return sum(each.softirq_s for each in idle) / seconds if seconds else 0.0

    def seconds(self, cell: Cell, contestant: Contestant) -> float | None:
        """Return the median time of an operation in seconds; None if it was not measured."""
        return self._median(cell, contestant, lambda turn: turn.seconds)

    def percent(self, cell: Cell, contestant: Contestant) -> float | None:
        """Return the median percentage of the ideal wire; None without a wire or a measurement."""
        if cell.network.one_host:
            return None
        return self._median(cell, contestant, lambda turn: 100 * cell.ideal_s / turn.seconds)

    def processor_ns(self, cell: Cell, contestant: Contestant) -> float | None:
        """Return the median processor time of all kinds for a byte on the wire, in nanoseconds."""
        return self._median(cell, contestant, self._kinds(cell)["cpu"])

    def ordered(self) -> list[Key]:
        """Return the measurements' keys; those that beat slackline over TCP by most come first.

        A key is a cell (a size on a network) and a contestant. Contestants are compared in time and
        in processor time; slackline's own rows come last.
        """
        return sorted(self.turns, key=self._place)

    def rows(self) -> list[Row]:
        """Return a row for each contestant with each size on each network, measured or skipped."""
        measured = [Row(labels=_labels(*key), values=self._values(*key)) for key in self.ordered()]
        return [*measured, *self.skipped, *self._order_row()]

    def order_ratios(self) -> list[float]:
        """Return, for each measured cell, the ratio of the times with and without rank order."""
        found = (
            ratio(self.seconds(cell, Contestant.TCP), self.seconds(cell, Contestant.ANY_ORDER))
            for cell in CELLS
        )
        return [each for each in found if each is not None]

    def _order_row(self) -> list[Row]:
        """Return a row with the price of rank order between hosts; none if it was not measured."""
        ratios = self.order_ratios()
        if not ratios:
            return []
        values = {"cells": len(ratios), "time_over_any_order": round(percentile(ratios, 50), 3)}
        labels = {"network": "all labs", "size": "all", "contestant": str(Contestant.TCP)}
        return [Row(labels=labels, values=values)]

    def tables(self) -> list[Table]:
        """Return the rows as two tables: the times, and the costs of an operation."""
        names = ("network", "size", "contestant")
        times = Table(
            *(*names, "ms", "/ slackline-tcp", "% of the wire"),
            title="an all_reduce: median (10th to 90th percentile) of the rounds",
        )
        costs = Table(
            *(*names, "ns a byte", "/ slackline-tcp", "user", "system", "softirq"),
            *("idle %", "waits", "preemptions", "packets"),
            title="processor time of all ranks for a byte on the wire, the same; "
            "context switches and packets of an operation",
        )
        for key in self.ordered():
            cell, contestant = key
            values = self._values(*key)
            start = (cell.network.name, cell.size.name, contestant)
            over = [_text(values, f"{name}_over_tcp", 2) for name in ("time", "cpu")]
            percent = _spread(values, "wire_percent", 1)
            times.add_row(*start, _spread(values, "time_ms", 2), over[0], percent)
            kinds = (_text(values, f"{name}_ns", 3) for name in ("user", "system", "softirq"))
            idle = _text(values, "idle_percent", 0)
            counts = (_text(values, name, 1) for name in ("waits", "preemptions", "packets"))
            costs.add_row(*start, _spread(values, "cpu_ns", 3), over[1], *kinds, idle, *counts)
        return [times, costs]

    def notes(self) -> list[str]:
        """Return notes: soft interrupts of the idle machine, and skipped contestants by reason."""
        baselines = [
            f"{network.name} {100 * self.idle_softirq(network):.2f} %" for network in self.idle
        ]
        notes = [f"soft interrupts without work, of one core: {', '.join(baselines)}"]
        if ratios := self.order_ratios():
            notes.append(
                f"rank order between hosts: {percentile(ratios, 50):.2f} times the time of any "
                f"order, the median of {len(ratios)} cells"
            )
        reasons: dict[str, list[str]] = {}
        for row in self.skipped:
            name = f"{row.labels['network']}/{row.labels['size']} {row.labels['contestant']}"
            reasons.setdefault(row.skipped or "", []).append(name)
        for reason, names in reasons.items():
            some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
            notes.append(f"skipped: {some}: {reason}")
        return notes

    def _kinds(self, cell: Cell) -> dict[str, Figure]:
        """Return the nanoseconds of processor time for a byte on the wire, by kind, and "cpu".

        "cpu" is the sum of the kinds.
        """
        idle, scale = self.idle_softirq(cell.network), 1e9 / cell.wire_bytes

        def user(turn: Turn) -> float:
            return scale * sum(usage.user_s for usage in turn.usages)

        def system(turn: Turn) -> float:
            return scale * sum(usage.system_s for usage in turn.usages)

        def softirq(turn: Turn) -> float:
            return scale * (turn.softirq_s - idle * turn.window_s) / turn.calls

        def total(turn: Turn) -> float:
            return user(turn) + system(turn) + softirq(turn)

        return {"cpu": total, "user": user, "system": system, "softirq": softirq}

    def _values(self, cell: Cell, contestant: Contestant) -> dict[str, Scalar]:
        turns, kinds = self.turns[cell, contestant], self._kinds(cell)
        figures: dict[str, Figure] = {"time_ms": lambda turn: 1e3 * turn.seconds}
        if not cell.network.one_host:
            figures["wire_percent"] = lambda turn: 100 * cell.ideal_s / turn.seconds
        figures |= {f"{name}_ns": figure for name, figure in kinds.items()}
        figures["idle_percent"] = lambda turn: turn.idle_percent
        figures["waits"] = lambda turn: sum(usage.voluntary for usage in turn.usages)
        figures["preemptions"] = lambda turn: sum(usage.involuntary for usage in turn.usages)
        figures["packets"] = lambda turn: turn.packets / turn.calls
        values: dict[str, Scalar] = {}
        for name, figure in figures.items():
            sample = [figure(turn) for turn in turns]
            values[name] = round(percentile(sample, 50), 4)
            values[f"{name}_p10"] = round(percentile(sample, 10), 4)
            values[f"{name}_p90"] = round(percentile(sample, 90), 4)
        time, cpu = self._over_tcp(cell, contestant)
        if time is not None and cpu is not None:
            values |= {"time_over_tcp": round(time, 3), "cpu_over_tcp": round(cpu, 3)}
        return {**values, "calls": turns[-1].calls, "rounds": len(turns)}

    def _over_tcp(self, cell: Cell, contestant: Contestant) -> tuple[float | None, float | None]:
        """Return the ratios of time and of processor time to those of slackline over TCP."""
        return (
            ratio(self.seconds(cell, contestant), self.seconds(cell, Contestant.TCP)),
            ratio(self.processor_ns(cell, contestant), self.processor_ns(cell, Contestant.TCP)),
        )

    def _place(self, key: Key) -> tuple[bool, float]:
        _, contestant = key
        ratios = [each for each in self._over_tcp(*key) if each is not None]
        return contestant.rails is not None, min(ratios, default=0.0)

    def _median(self, cell: Cell, contestant: Contestant, figure: Figure) -> float | None:
        turns = self.turns.get((cell, contestant))
        return percentile([figure(turn) for turn in turns], 50) if turns else None


def ratio(above: float | None, below: float | None) -> float | None:
    """Return `above` / `below`; None if one is missing or the divisor is not positive."""
    if above is None or below is None or below <= 0:
        return None
    return above / below


def _text(values: Mapping[str, Scalar], name: str, digits: int) -> str:
    value = values.get(name)
    return "-" if value is None else f"{value:.{digits}f}"


def _spread(values: Mapping[str, Scalar], name: str, digits: int) -> str:
    median, low, high = (
        _text(values, each, digits) for each in (name, f"{name}_p10", f"{name}_p90")
    )
    return median if name not in values else f"{median} ({low}-{high})"


def _labels(cell: Cell, contestant: Contestant) -> dict[str, Scalar]:
    return {
        "network": cell.network.name,
        "ranks": cell.network.ranks,
        "bytes": cell.size.nbytes,
        "size": cell.size.label,
        "contestant": str(contestant),
    }

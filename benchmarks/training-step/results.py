"""The results of a run: rows for JSON and a table; comparisons that PCCO loses come first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from _harness.report import Row, Scalar
from _harness.summary import percentile
from _harness.usage import Usage
from cases import (
    ALONE,
    BACKENDS,
    CELLS,
    DDP_DEFAULT,
    FSDP2,
    PCCO,
    Cell,
    Choice,
    Contestant,
    Method,
)
from rich.table import Table

FIXED = {each.name: each for each in (ALONE, PCCO, *DDP_DEFAULT.values(), *FSDP2.values())}
"""The contestants without settings that a selection has chosen, by name."""
ROUNDS = "rounds_ms"
"""The name of the series with the slowest rank's step time in each round."""
VALUES = (
    *("step_ms", "step_min_ms", "step_max_ms", "over_pcco", "user_ms", "system_ms"),
    *("voluntary", "involuntary", "python_calls", "rounds"),
)
"""The names of a row's values."""


@dataclass(kw_only=True)
class Results:
    """The measurements of all contestants so far."""

    turns: dict[tuple[Cell, Contestant], list[list[Usage]]] = field(default_factory=dict)
    """The usage of every rank, a list for each round, by cell and contestant."""
    calls: dict[tuple[Cell, Contestant], list[int]] = field(default_factory=dict)
    """The number of Python calls of a step at every rank, by cell and contestant."""
    choices: dict[tuple[Cell, Contestant], Choice] = field(default_factory=dict)
    """The variant of a step that a contestant's trial has chosen, by cell and contestant."""
    loaded: dict[tuple[Cell, Contestant], Mapping[str, Any]] = field(default_factory=dict)
    """The rows of earlier runs, by cell and contestant."""
    skipped: list[Row] = field(default_factory=list)

    def record(self, cell: Cell, contestant: Contestant, ranks: list[Usage]) -> None:
        """Add the measurements of one contestant's turn."""
        self.turns.setdefault((cell, contestant), []).append(ranks)

    def record_calls(self, cell: Cell, contestant: Contestant, ranks: list[int]) -> None:
        """Add the number of Python calls of one contestant's step."""
        self.calls[cell, contestant] = ranks

    def record_choice(self, cell: Cell, contestant: Contestant, choice: Choice) -> None:
        """Add the variant of a step that a contestant's trial has chosen."""
        self.choices[cell, contestant] = choice

    def load(self, report: Mapping[str, Any]) -> None:
        """Add the measured rows of an earlier run, given as its JSON object.

        A cell that was loaded before is replaced. Each row gets the commit, date and processor of
        its run. Raises ValueError for a row of a cell or contestant that there is no longer.
        """
        machine = report["machine"]
        origin = {"commit": report["commit"], "date": machine["date"], "cpu": machine["cpu"]}
        rows = [row for row in report["rows"] if "skipped" not in row]
        found = {(_cell_of(row), _contestant_of(row)): {**origin, **row} for row in rows}
        again = {cell for cell, _ in found}
        self.loaded = {key: row for key, row in self.loaded.items() if key[0] not in again} | found

    def cells(self) -> set[Cell]:
        """Return the cells with measurements."""
        return {cell for cell, _ in (*self.turns, *self.loaded)}

    def skip(self, cell: Cell, reason: str) -> None:
        """Record that a model on a network was not measured, and the reason."""
        self.skipped.append(Row(labels=_labels(cell), skipped=reason))

    def steps(self, cell: Cell, contestant: Contestant) -> list[float]:
        """Return the slowest rank's time of a step in each round, in seconds."""
        if (cell, contestant) in self.loaded:
            return [ms / 1e3 for ms in self.loaded[cell, contestant][ROUNDS]]
        return [slowest(ranks) for ranks in self.turns.get((cell, contestant), [])]

    def ratio(self, cell: Cell, above: Contestant | None, below: Contestant | None) -> float | None:
        """Return the ratio of two contestants' median step times; None if one is missing."""
        if above is None or below is None:
            return None
        times, base = self.steps(cell, above), self.steps(cell, below)
        if not times or not base:
            return None
        return round(percentile(times, 50) / percentile(base, 50), 3)

    def best_ddp(self, cell: Cell, backend: str) -> Contestant | None:
        """Return DDP with the settings that the selection chose; None without a selection."""
        found = [
            contestant
            for where, contestant in (*self.turns, *self.loaded)
            if where == cell and contestant.backend == backend and contestant.bucket_mb is not None
        ]
        return found[0] if found else None

    def ordered(self) -> list[tuple[Cell, Contestant]]:
        """Return the measured cells and contestants; those that beat PCCO by most come first.

        A cell is a model on a network. PCCO itself and training alone come last, because the others
        are compared with them.
        """
        return sorted((*self.turns, *self.loaded), key=self._place)

    def rows(self) -> list[Row]:
        """Return a row for each contestant with each model on each network, measured or skipped."""
        return [*self._measured(), *self.skipped]

    def table(self) -> Table:
        """Return a table of the rows."""
        table = Table(
            *("network", "model", "contestant", "step ms", "/ PCCO"),
            *("user ms", "system ms", "waits", "preemptions", "calls", "settings"),
            title="a training step: median (min..max of rounds) at the slowest rank; "
            "processor time, context switches and Python calls of all ranks",
        )
        for row in self._measured():
            values, labels = row.values, row.labels
            table.add_row(
                _TITLES[str(labels["network"])],
                str(labels["model"]),
                str(labels["contestant"]),
                f"{values['step_ms']:.1f} "
                f"({values['step_min_ms']:.1f}..{values['step_max_ms']:.1f})",
                f"{values['over_pcco']:.3f}",
                *(f"{values[name]:.1f}" for name in ("user_ms", "system_ms")),
                *(f"{values[name]:.0f}" for name in ("voluntary", "involuntary", "python_calls")),
                str(labels.get("choice", labels.get("settings", ""))),
            )
        return table

    def notes(self) -> list[str]:
        """Return a line for each reason to skip, with the skipped models and networks."""
        reasons: dict[str, list[str]] = {}
        for row in self.skipped:
            cells = reasons.setdefault(row.skipped or "", [])
            cells.append(f"{row.labels['network']}/{row.labels['model']}")
        return [f"skipped: {', '.join(cells)}: {reason}" for reason, cells in reasons.items()]

    def _place(self, key: tuple[Cell, Contestant]) -> tuple[bool, float]:
        cell, contestant = key
        reference = contestant.method in (Method.ALONE, Method.PCCO)
        return reference, self.ratio(cell, contestant, PCCO) or 0.0

    def _measured(self) -> list[Row]:
        return [self._row(*key) for key in self.ordered()]

    def _row(self, cell: Cell, contestant: Contestant) -> Row:
        labels: dict[str, Scalar] = {**_labels(cell), "contestant": contestant.name}
        if (cell, contestant) in self.loaded:
            loaded = self.loaded[cell, contestant]
            labels |= {
                name: value for name, value in loaded.items() if name not in (*VALUES, ROUNDS)
            }
            values = {name: loaded[name] for name in VALUES}
            return Row(labels=labels, values=values, series={ROUNDS: loaded[ROUNDS]})
        if contestant.bucket_mb is not None:
            labels |= {
                "settings": contestant.settings,
                "bucket_mb": contestant.bucket_mb,
                "static_graph": contestant.static_graph,
                "batched_copy": contestant.batched_copy,
            }
        if (cell, contestant) in self.choices:
            choice = self.choices[cell, contestant]
            labels |= {
                "choice": str(choice),
                "group_bytes": choice.group_bytes,
                "deferred": choice.deferred,
                "trial": choice.result,
            }
        steps_ms = [round(seconds * 1e3, 6) for seconds in self.steps(cell, contestant)]
        return Row(labels=labels, values=self._values(cell, contestant), series={ROUNDS: steps_ms})

    def _values(self, cell: Cell, contestant: Contestant) -> dict[str, float]:
        rounds, steps = self.turns[cell, contestant], self.steps(cell, contestant)
        return {
            "step_ms": round(percentile(steps, 50) * 1e3, 3),
            "step_min_ms": round(min(steps) * 1e3, 3),
            "step_max_ms": round(max(steps) * 1e3, 3),
            "over_pcco": self.ratio(cell, contestant, PCCO) or 0.0,
            "user_ms": _of_all_ranks(rounds, lambda usage: usage.user_s * 1e3),
            "system_ms": _of_all_ranks(rounds, lambda usage: usage.system_s * 1e3),
            "voluntary": _of_all_ranks(rounds, lambda usage: usage.voluntary),
            "involuntary": _of_all_ranks(rounds, lambda usage: usage.involuntary),
            "python_calls": sum(self.calls.get((cell, contestant), [])),
            "rounds": len(rounds),
        }


def slowest(ranks: Iterable[Usage]) -> float:
    """Return the time of a step at the slowest rank, in seconds."""
    return max(usage.seconds for usage in ranks)


def _of_all_ranks(rounds: Sequence[Sequence[Usage]], figure: Callable[[Usage], float]) -> float:
    """Return the median over rounds of a figure's sum over the ranks."""
    return round(percentile([sum(map(figure, ranks)) for ranks in rounds], 50), 2)


_TITLES = {cell.network.name: cell.network.title for cell in CELLS}


def _cell_of(row: Mapping[str, Any]) -> Cell:
    """Return the cell of a row; raise ValueError if there is none of its name."""
    name = f"{row['network']}/{row['model']}"
    for cell in CELLS:
        if cell.name == name:
            return cell
    raise ValueError(f"a row has the cell {name!r}, which the benchmark does not have")


def _contestant_of(row: Mapping[str, Any]) -> Contestant:
    """Return the contestant of a row; raise ValueError if there is none of its name."""
    name = row["contestant"]
    if name in FIXED:
        return FIXED[name]
    for backend in BACKENDS:
        found = Contestant(
            method=Method.DDP,
            backend=backend,
            bucket_mb=row.get("bucket_mb"),
            static_graph=row.get("static_graph", False),
            batched_copy=row.get("batched_copy", False),
        )
        if found.name == name:
            return found
    raise ValueError(f"a row has the contestant {name!r}, which the benchmark does not have")


def _labels(cell: Cell) -> dict[str, Scalar]:
    return {"network": cell.network.name, "ranks": cell.network.ranks, "model": cell.model}

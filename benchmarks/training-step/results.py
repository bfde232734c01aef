"""The results of a run: rows for JSON and a table; comparisons that PCCO loses come first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from _harness.report import Row, Scalar
from _harness.summary import percentile
from _harness.usage import Usage
from cases import PCCO, Cell, Contestant, Method
from rich.table import Table


@dataclass(kw_only=True)
class Results:
    """The measurements of all contestants so far."""

    turns: dict[tuple[Cell, Contestant], list[list[Usage]]] = field(default_factory=dict)
    """The usage of every rank, a list for each round, by cell and contestant."""
    calls: dict[tuple[Cell, Contestant], list[int]] = field(default_factory=dict)
    """The number of Python calls of a step at every rank, by cell and contestant."""
    groups: dict[tuple[Cell, Contestant], str] = field(default_factory=dict)
    """The groups of gradients that a contestant's trial has chosen, by cell and contestant."""
    skipped: list[Row] = field(default_factory=list)

    def record(self, cell: Cell, contestant: Contestant, ranks: list[Usage]) -> None:
        """Add the measurements of one contestant's turn."""
        self.turns.setdefault((cell, contestant), []).append(ranks)

    def record_calls(self, cell: Cell, contestant: Contestant, ranks: list[int]) -> None:
        """Add the number of Python calls of one contestant's step."""
        self.calls[cell, contestant] = ranks

    def record_groups(self, cell: Cell, contestant: Contestant, chosen: str) -> None:
        """Add the groups of gradients that a contestant's trial has chosen."""
        self.groups[cell, contestant] = chosen

    def skip(self, cell: Cell, reason: str) -> None:
        """Record that a model on a network was not measured, and the reason."""
        self.skipped.append(Row(labels=_labels(cell), skipped=reason))

    def steps(self, cell: Cell, contestant: Contestant) -> list[float]:
        """Return the slowest rank's time of a step in each round, in seconds."""
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
        """Return DDP with the bucket size that the selection chose; None without a selection."""
        found = [
            contestant
            for where, contestant in self.turns
            if where == cell and contestant.backend == backend and contestant.bucket_mb is not None
        ]
        return found[0] if found else None

    def ordered(self) -> list[tuple[Cell, Contestant]]:
        """Return the measured cells and contestants; those that beat PCCO by most come first.

        A cell is a model on a network. PCCO itself and training alone come last, because the others
        are compared with them.
        """
        return sorted(self.turns, key=self._place)

    def rows(self) -> list[Row]:
        """Return a row for each contestant with each model on each network, measured or skipped."""
        return [*(self._row(*key) for key in self.ordered()), *self.skipped]

    def table(self) -> Table:
        """Return a table of the rows."""
        table = Table(
            *("network", "model", "contestant", "step ms", "/ PCCO"),
            *("user ms", "system ms", "waits", "preemptions", "calls"),
            title="a training step: median (min..max of rounds) at the slowest rank; "
            "processor time, context switches and Python calls of all ranks",
        )
        for cell, contestant in self.ordered():
            values = self._values(cell, contestant)
            bucket = contestant.bucket_mb
            spread = f"{values['step_min_ms']:.1f}..{values['step_max_ms']:.1f}"
            table.add_row(
                cell.network.title,
                cell.model,
                contestant.name + ("" if bucket is None else f": {bucket} MB"),
                f"{values['step_ms']:.1f} ({spread})",
                f"{values['over_pcco']:.3f}",
                *(f"{values[name]:.1f}" for name in ("user_ms", "system_ms")),
                *(f"{values[name]:.0f}" for name in ("voluntary", "involuntary", "python_calls")),
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

    def _row(self, cell: Cell, contestant: Contestant) -> Row:
        bucket = contestant.bucket_mb
        labels: dict[str, Scalar] = {**_labels(cell), "contestant": contestant.name}
        if bucket is not None:
            labels["bucket_mb"] = bucket
        if (cell, contestant) in self.groups:
            labels["groups"] = self.groups[cell, contestant]
        return Row(labels=labels, values=self._values(cell, contestant))

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


def _labels(cell: Cell) -> dict[str, Scalar]:
    return {"network": cell.network.name, "ranks": cell.network.ranks, "model": cell.model}

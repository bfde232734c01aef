"""The results of a run: rows for JSON, targets, and tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from _harness.report import Row, Scalar
from _harness.summary import percentile
from cases import MS, Case
from contestants import ENTRIES
from path import Path, critical_path
from performer import Iteration
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The iterations of one contestant on one network."""

    seconds: tuple[float, ...]
    paths: tuple[Path, ...]
    """The critical paths of the rounds; empty if delays change, as the path is then unknown."""
    simulated_ms: float

    @classmethod
    def of(cls, case: Case, rounds: Sequence[Sequence[Iteration]], simulated_ms: float) -> Measured:
        """Compute times and critical paths of rounds, each of which has every rank's iteration."""
        seconds, paths = [], []
        delays = {link: ms * MS for link, ms in case.delays_ms}
        for ranks in rounds:
            start, end = min(r.start_ns for r in ranks), max(r.end_ns for r in ranks)
            seconds.append((end - start) / 1e9)
            if not case.redrawn:
                paths.append(critical_path([r.waits for r in ranks], start, end, delays))
        return cls(seconds=tuple(seconds), paths=tuple(paths), simulated_ms=simulated_ms)

    @property
    def median_ms(self) -> float:
        return percentile(self.seconds, 50) * 1e3

    def __str__(self) -> str:
        return f"{self.median_ms:.0f} ({self.simulated_ms:.0f})"

    def values(self) -> dict[str, Scalar]:
        """Return the figures by name, as the values of a report's row."""
        found: dict[str, Scalar] = {
            "median_ms": round(self.median_ms, 2),
            "p10_ms": round(percentile(self.seconds, 10) * 1e3, 2),
            "p90_ms": round(percentile(self.seconds, 90) * 1e3, 2),
            "rounds": len(self.seconds),
            "simulated_ms": self.simulated_ms,
            "over_simulated": round(self.median_ms / self.simulated_ms, 4),
        }
        if self.paths:
            found |= {
                "path_computing_ms": _median_ms([p.computing_ns for p in self.paths]),
                "path_waking_ms": _median_ms([p.waking_ns for p in self.paths]),
                "path_turning_ms": _median_ms([p.turning_ns for p in self.paths]),
                "path_messages_ms": _median_ms([p.messages_ns for p in self.paths]),
                "path_turns": percentile([p.turns for p in self.paths], 50),
                "path_hops": percentile([p.hops for p in self.paths], 50),
            }
        return found


@dataclass(kw_only=True)
class Results:
    """The measurements of all contestants so far."""

    measured: dict[tuple[Case, str], Measured] = field(default_factory=dict)
    others: list[Row] = field(default_factory=list)
    """The rows without iterations: the replay, and the cases that were not measured."""
    disturbed: bool = False
    """Whether ranks ran without priority over the machine's other programs."""
    totals: dict[str, float] = field(default_factory=dict)
    """The seconds of the replayed trace by contestant, crashes and restarts included."""

    def record(
        self, case: Case, name: str, rounds: Sequence[Sequence[Iteration]], simulated_ms: float
    ) -> None:
        """Add the iterations of one contestant on one network, a list for each round."""
        self.measured[case, name] = Measured.of(case, rounds, simulated_ms)

    def replayed(self, name: str, phases: Sequence[float], restart_s: float, scale: int) -> None:
        """Add a contestant's whole trace, by phase.

        `restart_s` is the cost of a crash at full length, 0 if the contestant does not restart.
        """
        total = sum(phases) + restart_s / scale
        self.totals[name] = total
        self.others.append(
            Row(
                labels={"part": "trace", "contestant": name},
                values={
                    "total_s": round(total, 2),
                    "iterations_s": round(sum(phases), 2),
                    "restart_s": round(restart_s, 2),
                    "restart_counted_s": round(restart_s / scale, 2),
                    "last_phase_s": round(phases[-1], 2),
                },
            )
        )

    def skip(self, labels: Mapping[str, Scalar], reason: str) -> None:
        """Record that something was not measured, and the reason."""
        self.others.append(Row(labels=labels, skipped=reason))

    def skip_case(self, case: Case, reason: str) -> None:
        self.skip(_labels(case), reason)

    def median_ms(self, case: Case, name: str) -> float | None:
        """Return the median time of an iteration in ms; None if it was not measured."""
        found = self.measured.get((case, name))
        return None if found is None else found.median_ms

    def ratio(self, above: tuple[Case, str], below: tuple[Case, str]) -> float | None:
        """Return the ratio of two median times; None if one of them was not measured."""
        over, under = self.median_ms(*above), self.median_ms(*below)
        return None if over is None or under is None else round(over / under, 3)

    def over_simulated(self, case: Case, name: str) -> float | None:
        """Return the ratio of the median to the simulated time; None if it was not measured."""
        found = self.measured.get((case, name))
        return None if found is None else round(found.median_ms / found.simulated_ms, 4)

    def rows(self) -> list[Row]:
        found = [
            Row(labels={**_labels(case), "contestant": name}, values=each.values())
            for (case, name), each in self.measured.items()
        ]
        return [*found, *self.others]

    def tables(self) -> list[Table]:
        """Return one table for each part and shape, and one for the trace."""
        groups: dict[tuple[str, str], list[Case]] = {}
        for case, _ in self.measured:
            cases = groups.setdefault((case.part, str(case.shape)), [])
            if case not in cases:
                cases.append(case)
        found = [self._table(*key, cases) for key, cases in groups.items()]
        return [*found, self._trace_table()] if self.totals else found

    def notes(self) -> list[str]:
        among = "ranks may not go before other programs here: what else runs shows in the times"
        skipped = [
            f"{', '.join(map(str, row.labels.values()))}: skipped, {row.skipped}"
            for row in self.others
            if row.skipped is not None
        ]
        return [among, *skipped] if self.disturbed else skipped

    def _trace_table(self) -> Table:
        table = Table(
            "contestant", "s", "of it for the restart", "s of the last phase", title="trace"
        )
        for row in self.others:
            if row.labels["part"] == "trace" and row.skipped is None:
                cells = ("total_s", "restart_counted_s", "last_phase_s")
                table.add_row(str(row.labels["contestant"]), *(f"{row.values[c]}" for c in cells))
        return table

    def _table(self, part: str, shape: str, cases: Sequence[Case]) -> Table:
        names = [e.name for e in ENTRIES if any((case, e.name) in self.measured for case in cases)]
        table = Table(*("network", *names), title=f"{part}, {shape}: ms an iteration (simulated)")
        for case in cases:
            label = case.where + (f" {case.delay_ms} ms" if case.delays_ms else "")
            cells = []
            for name in names:
                each = self.measured.get((case, name))
                cells.append(
                    "-" if each is None else f"{each.median_ms:.0f} ({each.simulated_ms:.0f})"
                )
            table.add_row(label, *cells)
        return table


def _labels(case: Case) -> dict[str, Scalar]:
    return {
        "part": case.part,
        "stages": case.shape.stages,
        "microbatches": case.shape.microbatches,
        "message_bytes": case.shape.message_bytes,
        "network": case.where,
        "delay_ms": case.delay_ms,
    }


def _median_ms(sample_ns: Sequence[int]) -> float:
    return round(percentile(sample_ns, 50) / MS, 2)

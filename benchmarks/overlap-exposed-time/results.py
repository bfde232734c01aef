"""The results of a run: rows for JSON, targets, and tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from _harness.ideal import goodput_bps
from _harness.report import Row, Scalar, Target
from _harness.summary import percentile
from cases import (
    BEST_GLOO,
    CASES,
    DDP_BUCKETS_MB,
    FAST,
    FLOOR_DISTANCE,
    FLOOR_RATIO,
    HALF,
    LAYERS,
    REAL,
    REMOVED,
    SLOW,
    Case,
)
from floor import exposed_floor, whole_model_bound
from performer import Turn
from rich.table import Table

ALONE, PCCO, BLOCKING = "alone", "PCCO over slackline", "blocking over slackline"
GLOO = "DDP over gloo"
DEFAULT_GLOO = f"{GLOO}, {DDP_BUCKETS_MB[0]} MB"


@dataclass(kw_only=True)
class Results:
    """The measurements of all contestants so far."""

    turns: dict[tuple[Case, str], list[list[Turn]]] = field(default_factory=dict)
    """The figures of every rank, a list for each round, by case and contestant."""
    skipped: list[Row] = field(default_factory=list)

    def record(self, case: Case, name: str, ranks: list[Turn]) -> None:
        """Add one turn of one contestant, with the figures of each rank."""
        self.turns.setdefault((case, name), []).append(ranks)

    def skip(self, case: Case, reason: str) -> None:
        """Record that a combination of network and load was not measured, and the reason."""
        self.skipped.append(Row(labels={"case": case.name}, skipped=reason))

    def steps(self, case: Case, name: str) -> list[float]:
        """Return the slowest rank's time of a step in seconds, one for each round."""
        return [max(turn.step_s for turn in ranks) for ranks in self.turns.get((case, name), [])]

    def exposed(self, case: Case, name: str) -> list[float]:
        """Return each round's exposed time in seconds: a step minus the round's step alone."""
        pairs = zip(self.steps(case, name), self.steps(case, ALONE), strict=True)
        return [step - alone for step, alone in pairs]

    def names(self, case: Case) -> list[str]:
        """Return the names of the contestants that communicate."""
        return [name for where, name in self.turns if where == case and name != ALONE]

    def best_gloo(self, case: Case) -> str | None:
        """Return the contestant's name of DDP over gloo with the best bucket size.

        The best bucket size exposes the least time.
        """
        names = [name for name in self.names(case) if name.startswith(GLOO)]
        return min(names, key=lambda name: percentile(self.exposed(case, name), 50), default=None)

    def removed(self, case: Case, other: str) -> float | None:
        """Return the percentage of another contestant's exposed communication time that PCCO hides.

        The result is the median of the rounds, compared pairwise. None if PCCO was not measured.
        """
        if PCCO not in self.names(case):
            return None
        pairs = zip(self.exposed(case, PCCO), self.exposed(case, other), strict=True)
        return percentile([100 * (1 - ours / theirs) for ours, theirs in pairs], 50)

    def rows(self) -> list[Row]:
        return [*(self._row(case, name) for case, name in self.turns), *self.skipped]

    def targets(self) -> list[Target]:
        targets = []
        for case in CASES:
            targets.append(self._floor_target(case))
            if case.share <= HALF:
                others = [BLOCKING, DEFAULT_GLOO] if case.network == SLOW else [BLOCKING]
                for other in others:
                    removed = self.removed(case, other)
                    targets.append(
                        Target(
                            name=f"{case.name}: % of what {other} exposes that PCCO hides",
                            target=REMOVED,
                            measured=None if removed is None else round(removed, 2),
                        )
                    )
        ahead = [case for case in (*CASES, REAL) if case.network == FAST]
        return [*targets, *(self._gloo_target(case) for case in ahead)]

    def _floor_target(self, case: Case) -> Target:
        layers = case.layers()
        floor, wire = exposed_floor(layers), sum(layer.wire for layer in layers)
        measured = None
        if PCCO in self.names(case):
            exposed = percentile(self.exposed(case, PCCO), 50)
            relative = exposed / floor if case.network == FAST else 100 * (exposed - floor) / wire
            measured = round(relative, 3)
        if case.network == FAST:
            name, target = f"{case.name}: PCCO's exposed over the floor", FLOOR_RATIO
        else:
            name, target = f"{case.name}: PCCO from the floor, % of the wire's time", FLOOR_DISTANCE
        return Target(name=name, target=target, measured=measured, bound="at most")

    def _gloo_target(self, case: Case) -> Target:
        best, measured = self.best_gloo(case), None
        if best is not None and PCCO in self.names(case):
            ours, theirs = (percentile(self.exposed(case, name), 50) for name in (PCCO, best))
            measured = round(ours / theirs, 3)
        name = f"{case.name}: PCCO's exposed over that of {GLOO}, best bucket"
        return Target(name=name, target=BEST_GLOO, measured=measured, bound="at most")

    def tables(self) -> list[Table]:
        """Return one table for each measured combination of network and load."""
        cases = dict.fromkeys(case for case, _ in self.turns)
        return [self._table(case) for case in cases]

    def notes(self) -> list[str]:
        """Return sentences on the exposed time that PCCO hides, and on skipped measurements."""
        notes = []
        for case in dict.fromkeys(case for case, _ in self.turns):
            best = self.best_gloo(case)
            others = [BLOCKING, DEFAULT_GLOO, *([best] if best else [])]
            told = [f"{self.removed(case, other):.1f} % of {other}" for other in others]
            notes.append(f"{case.name}: PCCO removes {', '.join(told)} (the best bucket size last)")
        return [*notes, *(f"{row.labels['case']} skipped: {row.skipped}" for row in self.skipped)]

    def _row(self, case: Case, name: str) -> Row:
        rounds = self.turns[case, name]
        values: dict[str, Scalar] = {**_spread("step", self.steps(case, name))}
        if name != ALONE:
            values |= _spread("exposed", self.exposed(case, name))
        labels: dict[str, Scalar] = {"case": case.name, "contestant": name, "layers": LAYERS}
        if case != REAL:
            layers = case.layers()
            values["floor_ms"] = round(exposed_floor(layers) * 1e3, 3)
            values["whole_model_bound_ms"] = round(whole_model_bound(layers) * 1e3, 3)
            values["wire_ms"] = round(sum(layer.wire for layer in layers) * 1e3, 3)
        return Row(
            labels=labels, values={**values, **_profile(case, rounds), "rounds": len(rounds)}
        )

    def _table(self, case: Case) -> Table:
        title = f"real computation at {case.network.title}"
        if case != REAL:
            title = f"communication {case.share:g}x of computation at {case.network.title}"
            layers = case.layers()
            title += (
                f": wire {sum(layer.wire for layer in layers) * 1e3:.0f} ms, "
                f"floor {exposed_floor(layers) * 1e3:.1f} ms"
            )
        table = Table(
            *("contestant", "step ms", "exposed ms", "wire busy %"),
            *("main thread cpu ms", "process cpu ms", "sleeps"),
            title=f"{title}; median (p10-p90) of a step",
        )
        for name in [ALONE, *self.names(case)]:
            profile = _profile(case, self.turns[case, name])
            exposed = "" if name == ALONE else _text(self.exposed(case, name))
            table.add_row(
                name,
                _text(self.steps(case, name)),
                exposed,
                *(f"{value}" for value in profile.values()),
            )
        return table


def _profile(case: Case, rounds: Sequence[Sequence[Turn]]) -> dict[str, Scalar]:
    """Return the parts of a step's time, each the median over ranks and rounds."""
    turns = [turn for ranks in rounds for turn in ranks]
    goodput = goodput_bps(case.network.rate)
    busy = [100 * turn.wire_bytes * 8 / goodput / turn.step_s for turn in turns]
    return {
        "wire_busy_percent": round(percentile(busy, 50), 1),
        "main_thread_cpu_ms": round(percentile([t.main_cpu_s for t in turns], 50) * 1e3, 2),
        "process_cpu_ms": round(percentile([t.cpu_s for t in turns], 50) * 1e3, 2),
        "sleeps": round(percentile([t.wake_ups for t in turns], 50), 1),
    }


def _spread(name: str, seconds: Sequence[float]) -> dict[str, Scalar]:
    return {
        f"{name}_ms": round(percentile(seconds, 50) * 1e3, 3),
        f"{name}_p10_ms": round(percentile(seconds, 10) * 1e3, 3),
        f"{name}_p90_ms": round(percentile(seconds, 90) * 1e3, 3),
    }


def _text(seconds: Sequence[float]) -> str:
    median, low, high = (percentile(seconds, percent) * 1e3 for percent in (50, 10, 90))
    return f"{median:.1f} ({low:.1f}-{high:.1f})"

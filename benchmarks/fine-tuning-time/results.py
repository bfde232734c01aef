"""The rows, targets and tables of the benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean, median
from typing import Any

from _harness.report import Row, Target
from cases import CONTESTANTS, CURVE_MEAN, DDP, GLOO, LOSS, OVERLAP, RATES, Contestant
from jobs import Job
from rich.table import Table


@dataclass
class Results:
    """The measurements of a run."""

    curves: dict[str, list[float]] = field(default_factory=dict)
    """The loss of each step, by what travels: "fp32" and "bf16"."""
    steps_s: dict[tuple[int, str], list[list[float]]] = field(default_factory=dict)
    """The steps of each round, by rate and contestant."""
    causes: dict[tuple[int, str], list[str]] = field(default_factory=dict)
    cut_s: dict[int, list[float]] = field(default_factory=dict)
    """The step in which a NIC was cut, of each round, by rate."""
    after_s: dict[int, list[float]] = field(default_factory=dict)
    """The steps after the cut, by rate."""
    skipped: dict[tuple[str, str], str] = field(default_factory=dict)
    """The reason why a contestant of a part was not measured."""

    def take_curves(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take the losses of an earlier run's rows."""
        for row in rows:
            if row["part"] == "curve" and "losses" in row:
                self.curves[row["gradients"]] = row["losses"]

    def record(self, rate: int, contestant: Contestant, job: Job, warm_up: int) -> None:
        """Add a job's steps after the first `warm_up` ones.

        Raises RuntimeError if a cut did not fall between the warm-up and the last step.
        """
        key = rate, contestant.name
        self.causes[key] = job.causes
        kept = job.steps_s[max(0, warm_up - 1) :]
        if contestant.cut:
            cut_ns = min(job.since_ns, default=0)
            at = sum(ended_ns < cut_ns for ended_ns in job.ended_ns)
            if not warm_up < at < len(job.ended_ns) - 1:
                raise RuntimeError(f"the cut is at step {at} of {len(job.ended_ns)}")
            kept = job.steps_s[warm_up - 1 : at - 1]
            self.cut_s.setdefault(rate, []).append(job.steps_s[at - 1])
            self.after_s.setdefault(rate, []).extend(job.steps_s[at:])
        self.steps_s.setdefault(key, []).append(kept)

    def steps_to_loss(self, method: str) -> int | None:
        """Return the number of steps after which the mean of CURVE_MEAN losses is LOSS at most."""
        losses = self.curves.get("bf16" if method == "bf16" else "fp32", [])
        for end in range(CURVE_MEAN, len(losses) + 1):
            if fmean(losses[end - CURVE_MEAN : end]) <= LOSS:
                return end
        return None

    def step_s(self, rate: int, name: str) -> float | None:
        """Return the median step of a contestant in seconds; None if it was not measured."""
        rounds = self.steps_s.get((rate, name))
        return median(each for steps in rounds for each in steps) if rounds else None

    def minutes(self, rate: int, contestant: Contestant) -> float | None:
        """Return the time of all steps up to LOSS, in minutes; None if a part was not measured."""
        step_s, count = self.step_s(rate, contestant.name), self.steps_to_loss(contestant.method)
        if step_s is None or count is None:
            return None
        if not contestant.cut:
            return count * step_s / 60
        before = count // 2
        after_s = median(self.after_s[rate])
        return (before * step_s + median(self.cut_s[rate]) + (count - before - 1) * after_s) / 60

    def rows(self) -> list[Row]:
        """Return a row for each contestant on each network, and one for each curve."""
        return [*self._curve_rows(), *self._step_rows()]

    def _curve_rows(self) -> Iterator[Row]:
        for kind in ("fp32", "bf16"):
            labels = {"part": "curve", "gradients": kind}
            if kind not in self.curves:
                yield Row(labels=labels, skipped=self.skipped["curve", kind])
                continue
            count = self.steps_to_loss(kind)
            yield Row(
                labels=labels,
                values={"steps": len(self.curves[kind]), "steps_to_loss": count or "not reached"},
                series={"losses": self.curves[kind]},
            )

    def _step_rows(self) -> Iterator[Row]:
        for part, rate in RATES.items():
            for each in CONTESTANTS:
                labels = {"part": part, "contestant": each.name}
                step_s = self.step_s(rate, each.name)
                if step_s is None:
                    yield Row(labels=labels, skipped=self.skipped[part, each.name])
                    continue
                rounds = [median(steps) for steps in self.steps_s[rate, each.name]]
                values: dict[str, float | str] = {
                    "step_s": step_s,
                    "fastest_round_s": min(rounds),
                    "slowest_round_s": max(rounds),
                    "causes": "; ".join(self.causes[rate, each.name]) or "none",
                }
                if each.cut:
                    values["cut_step_s"] = median(self.cut_s[rate])
                    values["after_s"] = median(self.after_s[rate])
                if (minutes := self.minutes(rate, each)) is not None:
                    values["minutes_to_loss"] = minutes
                yield Row(labels=labels, values=values)

    def targets(self) -> list[Target]:
        """Return the bounds on the ratios of steps."""
        found = []
        for rate in RATES.values():
            of_rate = f"{rate} Mbit/s"
            found += [
                Target(
                    name=f"{of_rate}: step of DDP over gloo / step of {name}",
                    target=1.0,
                    measured=self._ratio(rate, GLOO.name, name),
                )
                for name in (DDP.name, OVERLAP.name)
            ]
            cut = self.cut_s.get(rate)
            after = self.after_s.get(rate)
            found.append(
                Target(
                    name=f"{of_rate}: step with the cut / step over one NIC",
                    target=1.2,
                    measured=median(cut) / median(after) if cut and after else None,
                    bound="at most",
                )
            )
        return found

    def _ratio(self, rate: int, above: str, below: str) -> float | None:
        one, other = self.step_s(rate, above), self.step_s(rate, below)
        return None if one is None or other is None else one / other

    def tables(self) -> list[Table]:
        """Return a table for each rate, the slowest contestants first."""
        return [table for part, rate in RATES.items() if (table := self._table(part, rate))]

    def _table(self, part: str, rate: int) -> Table | None:
        measured = [each for each in CONTESTANTS if self.step_s(rate, each.name) is not None]
        if not measured:
            return None
        table = Table("", "step (s)", "rounds (s)", "minutes to the loss", "named", title=f"{part}")
        for each in sorted(measured, key=lambda each: -(self.step_s(rate, each.name) or 0)):
            rounds = [median(steps) for steps in self.steps_s[rate, each.name]]
            minutes = self.minutes(rate, each)
            step = f"{self.step_s(rate, each.name):.3g}"
            if each.cut:
                step += f", {median(self.cut_s[rate]):.3g}, {median(self.after_s[rate]):.3g}"
            table.add_row(
                each.name,
                step,
                f"{min(rounds):.3g} to {max(rounds):.3g}",
                "-" if minutes is None else f"{minutes:.3g}",
                "; ".join(self.causes[rate, each.name]) or "-",
            )
        return table


def equal_steps(jobs: Sequence[Job], count: int) -> bool:
    """Return whether the first `count` losses of all jobs are the same numbers."""
    first = {tuple(islice(job.losses, count)) for job in jobs}
    return len(first) == 1

"""The costs of a step by contestant: processor time, calls, system calls, samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from _harness.report import Row
from _harness.summary import percentile
from cases import ALONE, GLOO, PCCO, SLACKLINE, Contestant, Method
from cost_places import ELSEWHERE, OTHER_THREADS, PARTS, PLACES
from rich.table import Table

GROUP_BYTES = 1 << 20
TENSORS = 400
"""The number of tensors of the model."""
CONTESTANTS: Mapping[str, Contestant] = {
    "alone": ALONE,
    "PCCO": PCCO,
    "PCCO, groups of 1 MiB": Contestant(
        method=Method.PCCO, backend=SLACKLINE, group_bytes=GROUP_BYTES
    ),
    **{
        f"DDP over {backend}": Contestant(
            method=Method.DDP, backend=backend, bucket_mb=25, static_graph=True
        )
        for backend in (SLACKLINE, GLOO)
    },
}
"""The contestants by name. PCCO is measured with the choice of its trial, and with groups of a
given size, which are the same at every commit. DDP has one bucket."""


@dataclass(kw_only=True)
class Costs:
    """The costs of a step of one rank, by contestant."""

    turns: dict[str, list[Mapping[str, float]]] = field(default_factory=dict)
    """Processor time in us by part, the mean over the ranks, for each round."""
    calls: dict[str, Sequence[Mapping[str, float]]] = field(default_factory=dict)
    """Python calls by place, for each rank."""
    system_calls: dict[str, float] = field(default_factory=dict)
    shares: dict[str, Mapping[tuple[str, str], float]] = field(default_factory=dict)
    """The share of the training thread's samples by part of the step and place."""
    choices: dict[str, str] = field(default_factory=dict)
    """The variants that trials have chosen."""
    skipped: dict[str, str] = field(default_factory=dict)
    """The reason why a figure was not measured, by figure."""

    def record(self, name: str, ranks: Sequence[Mapping[str, float]]) -> None:
        """Add the processor times of a turn, by part of the step, for each rank."""
        mean = {part: sum(rank[part] for rank in ranks) / len(ranks) for part in ranks[0]}
        self.turns.setdefault(name, []).append(mean)

    def skip(self, figure: str, reason: str) -> None:
        """Record that a figure was not measured, and the reason."""
        self.skipped[figure] = reason

    def part_us(self, name: str, part: str) -> float:
        """Return the median processor time of a part of a step, in us."""
        return percentile([turn[part] for turn in self.turns[name]], 50)

    def step_us(self, name: str) -> float:
        """Return the processor time of a step with all threads, the sum of its parts, in us."""
        return sum(self.part_us(name, part) for part in (*PARTS, OTHER_THREADS))

    def above_alone_us(self, name: str) -> float | None:
        """Return the processor time of a step above that of training alone, in us a tensor.

        None if alone was not measured.
        """
        if "alone" not in self.turns:
            return None
        return (self.step_us(name) - self.step_us("alone")) / TENSORS

    def place_us(self, name: str) -> Mapping[tuple[str, str], float]:
        """Return the training thread's processor time by part and place, in us.

        The time of a part is divided among the places in proportion to the samples of that part.
        Empty if there are no samples.
        """
        found = self.shares.get(name, {})
        totals = {part: sum(n for (of, _), n in found.items() if of == part) for part in PARTS}
        return {
            (part, place): self.part_us(name, part) * share / totals[part]
            for (part, place), share in found.items()
        }

    def rows(self) -> list[Row]:
        """Return a row for each contestant."""
        return [self._row(name) for name in self.turns]

    def tables(self) -> list[Table]:
        """Return a table of parts and counts, and one of places if there are samples."""
        title = "processor time of a step in us, and counts, of one rank"
        parts = Table("contestant", *PARTS, OTHER_THREADS, "sum", *_OTHERS, title=title)
        for row in self.rows():
            times = (row.values[f"{part}_us"] for part in (*PARTS, OTHER_THREADS))
            others = (row.values.get(key) for key in _OTHERS.values())
            parts.add_row(
                str(row.labels["contestant"]),
                *(f"{time:.0f}" for time in times),
                f"{row.values['step_us']:.0f}",
                *("-" if other is None else f"{other:.0f}" for other in others),
            )
        return [parts, *self._place_table()]

    def notes(self) -> list[str]:
        """Return a line for each choice of a trial, and for each figure that was not measured."""
        return [
            *(f"{name}: {choice}" for name, choice in self.choices.items()),
            *(f"skipped: {figure}: {reason}" for figure, reason in self.skipped.items()),
        ]

    def _place_table(self) -> Iterator[Table]:
        if not self.shares:
            return
        names = list(self.shares)
        title = "processor time of the training thread in us a step, by part and place of the code"
        table = Table("part", "place", *names, title=title)
        times = {name: self.place_us(name) for name in names}
        for part in PARTS:
            for place in (*(place for place, _ in PLACES), ELSEWHERE):
                shown = [times[name].get((part, place), 0.0) for name in names]
                if any(time >= 0.5 for time in shown):
                    table.add_row(part, place, *(f"{time:.0f}" for time in shown))
        yield table

    def _row(self, name: str) -> Row:
        parts = {
            f"{part}_us": round(self.part_us(name, part), 1) for part in (*PARTS, OTHER_THREADS)
        }
        values: dict[str, float] = {**parts, "step_us": round(self.step_us(name), 1)}
        above = self.above_alone_us(name)
        if above is not None:
            values["above_alone_us"] = round(above, 2)
        if name in self.calls:
            by_place = self.calls[name]
            for place in sorted({place for rank in by_place for place in rank}):
                calls = sum(rank.get(place, 0.0) for rank in by_place) / len(by_place)
                values[f"python_calls of {place}"] = round(calls, 1)
            values["python_calls"] = round(
                sum(sum(rank.values()) for rank in by_place) / len(by_place), 1
            )
        if name in self.system_calls:
            values["system_calls"] = round(self.system_calls[name], 1)
        for (part, place), us in self.place_us(name).items():
            values[f"{part} in {place}_us"] = round(us, 1)
        choice = {"choice": self.choices[name]} if name in self.choices else {}
        return Row(labels={"contestant": name, **choice}, values=values)


_OTHERS = {
    "above alone, a tensor": "above_alone_us",
    "python calls": "python_calls",
    "system calls": "system_calls",
}
"""The further columns of the first table, with the values that they show."""

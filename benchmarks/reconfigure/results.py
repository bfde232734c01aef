"""The results of a run: rows for JSON, targets, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from statistics import median

from _harness.report import Row, Scalar, Target
from _harness.summary import Summary, percentile
from cases import (
    CONTESTANTS,
    CYCLE,
    FIRST_OVER_USUAL,
    GROWTH,
    HOST,
    MOST_BYTES,
    MOST_P99_MS,
    SERIES,
    SITES,
    SIZES,
    SLACKLINE,
    Contestant,
    Series,
    Site,
)
from performer import Holdings, Turn
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Times:
    """The seconds of one change of a group, from all members together."""

    change: float
    """From the first member's call to the last member's return."""
    first: float
    """From there to the last member's end of the first all_reduce."""
    usual: float
    """The median time between the last members' ends of two usual all_reduces."""

    @classmethod
    def of(cls, turns: Sequence[Turn]) -> Times:
        """Return the times of a change, from the turns of all members."""
        changed = max(turn.changed for turn in turns)
        ends = [max(turn.warm for turn in turns)]
        ends += [max(each) for each in zip(*(turn.usual for turn in turns), strict=True)]
        return cls(
            change=changed - min(turn.begun for turn in turns),
            first=max(turn.first for turn in turns) - changed,
            usual=median(end - start for start, end in pairwise(ends)),
        )


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The growth of each process over many changes, in rank order."""

    changes: int
    before: Sequence[Holdings]
    after: Sequence[Holdings]

    @property
    def bytes_a_change(self) -> list[float]:
        """The resident memory that each process has got by a change."""
        return [
            (after.resident_bytes - before.resident_bytes) / self.changes
            for before, after in zip(self.before, self.after, strict=True)
        ]

    def most(self, resource: str) -> int:
        """Return the largest growth of a process in one field of Holdings."""
        pairs = zip(self.before, self.after, strict=True)
        return max(getattr(after, resource) - getattr(before, resource) for before, after in pairs)

    def row(self, series: Series) -> Row:
        """Return the row of the report."""
        return Row(
            labels={"part": GROWTH, "contestant": SLACKLINE.name, "series": series.name},
            values={
                "changes": self.changes,
                "most_bytes_a_change": round(max(self.bytes_a_change), 1),
                "median_bytes_a_change": round(median(self.bytes_a_change), 1),
                "descriptors": self.most("descriptors"),
                "threads": self.most("threads"),
            },
            series={"bytes_a_change": [round(each, 1) for each in self.bytes_a_change]},
        )


@dataclass(kw_only=True)
class Results:
    """All measurements so far, or the reasons why there are none."""

    times: dict[tuple[Site, Contestant, str, int], list[Times]] = field(default_factory=dict)
    """By site, contestant, change, and bytes of the all_reduces."""
    growths: dict[Series, Growth] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """The reasons why parts were not measured."""

    def add(
        self, site: Site, contestant: Contestant, change: str, nbytes: int, times: Times
    ) -> None:
        """Store the times of one change."""
        self.times.setdefault((site, contestant, change, nbytes), []).append(times)

    def changes(self, site: Site, contestant: Contestant, change: str) -> list[float]:
        """Return the seconds of all changes of a kind."""
        sizes = (self.times.get((site, contestant, change, nbytes), []) for nbytes in SIZES)
        return [times.change for sample in sizes for times in sample]

    def reduced(self, site: Site, contestant: Contestant, nbytes: int) -> list[Times]:
        """Return the times of all changes with all_reduces of a size after them."""
        kinds = (self.times.get((site, contestant, change, nbytes), []) for change in CYCLE)
        return [times for sample in kinds for times in sample]

    def first_over_usual(self, site: Site, contestant: Contestant, nbytes: int) -> float | None:
        """Return the ratio of the medians of the first and the usual all_reduces."""
        sample = self.reduced(site, contestant, nbytes)
        if not sample:
            return None
        return median(each.first for each in sample) / median(each.usual for each in sample)

    def rows(self) -> list[Row]:
        """Return a row for each kind of change and each size, and one for the growth."""
        rows = [Row(labels={"part": part}, skipped=why) for part, why in self.skipped.items()]
        for site, contestant in product(SITES, CONTESTANTS):
            labels: dict[str, Scalar] = {"part": site.name, "contestant": contestant.name}
            rows += [
                Row(labels={**labels, "change": change}, values=_values(sample))
                for change in CYCLE
                if (sample := self.changes(site, contestant, change))
            ]
            rows += [
                Row(labels={**labels, "all_reduce_bytes": nbytes}, values=_first_and_usual(reduced))
                for nbytes in SIZES
                if (reduced := self.reduced(site, contestant, nbytes))
            ]
        return rows + [growth.row(series) for series, growth in self.growths.items()]

    def targets(self) -> list[Target]:
        """Return the targets of slackline's changes at each site, and of what they leave."""
        found = [target for site in SITES for target in self._targets_of(site)]
        for series in SERIES:
            growth = self.growths.get(series)
            left: dict[str, tuple[float, float | None]] = {
                "memory of the process that grows most, bytes a change": (
                    MOST_BYTES,
                    None if growth is None else round(max(growth.bytes_a_change), 1),
                ),
                "descriptors more": (0, None if growth is None else growth.most("descriptors")),
                "threads more": (0, None if growth is None else growth.most("threads")),
            }
            found += [
                Target(
                    name=f"{GROWTH}, {series.name}: {name}",
                    target=limit,
                    measured=measured,
                    bound="at most",
                )
                for name, (limit, measured) in left.items()
            ]
        return found

    def _targets_of(self, site: Site) -> list[Target]:
        samples = {change: self.changes(site, SLACKLINE, change) for change in CYCLE}
        found: list[tuple[str, float, float | None]] = [
            (f"{change}, median ms", site.most_median_ms, _ms(sample, 50))
            for change, sample in samples.items()
        ]
        tails = [tail for sample in samples.values() if (tail := _ms(sample, 99)) is not None]
        found.append(
            ("99th percentile ms, the slowest kind", MOST_P99_MS, max(tails, default=None))
        )
        for nbytes, size in SIZES.items():
            over = self.first_over_usual(site, SLACKLINE, nbytes)
            name = f"first all_reduce of {size} over a usual one"
            found.append((name, FIRST_OVER_USUAL, None if over is None else round(over, 2)))
        return [
            Target(name=f"{site.name}: {name}", target=limit, measured=measured, bound="at most")
            for name, limit, measured in found
        ]

    def tables(self) -> list[Table]:
        """Return a table for each site: ms of the changes, and of all_reduces after them."""
        tables = []
        for site in SITES:
            if not any(key[0] == site for key in self.times):
                continue
            table = Table(
                "contestant",
                *CYCLE,
                *(f"{size}: first, usual" for size in SIZES.values()),
                title=f"{site.title}: ms of a change, median (10 % to 90 %), 99 %; all_reduces "
                "after it",
            )
            for contestant in CONTESTANTS:
                table.add_row(
                    contestant.name,
                    *(_cell(self.changes(site, contestant, change)) for change in CYCLE),
                    *(self._reduced_cell(site, contestant, nbytes) for nbytes in SIZES),
                )
            tables.append(table)
        if self.growths:
            table = Table(
                "series", "changes", "bytes a change, by rank", "descriptors", "threads",
                title=f"{HOST.title}: growth over changes by {SLACKLINE.name}",
            )  # fmt: skip
            for series, growth in self.growths.items():
                table.add_row(
                    series.name,
                    str(growth.changes),
                    " ".join(f"{each:.0f}" for each in growth.bytes_a_change),
                    f"{growth.most('descriptors'):+}",
                    f"{growth.most('threads'):+}",
                )
            tables.append(table)
        return tables

    def _reduced_cell(self, site: Site, contestant: Contestant, nbytes: int) -> str:
        sample = self.reduced(site, contestant, nbytes)
        over = self.first_over_usual(site, contestant, nbytes)
        if over is None:
            return "-"
        first, usual = (median(getattr(t, name) for t in sample) for name in ("first", "usual"))
        return f"{first * 1e3:.2f}, {usual * 1e3:.2f} ({over:.2f}x)"

    def notes(self) -> list[str]:
        """Return the reasons why parts were not measured."""
        return [f"{part} skipped: {why}" for part, why in self.skipped.items()]


def _values(sample: Sequence[float]) -> dict[str, Scalar]:
    p99 = round(percentile(sample, 99) * 1e6, 2)
    return {**Summary.of_seconds(sample).values(), "p99_us": p99}


def _first_and_usual(sample: Sequence[Times]) -> dict[str, Scalar]:
    first = Summary.of_seconds([each.first for each in sample]).values()
    usual = Summary.of_seconds([each.usual for each in sample]).values()
    return {
        **{f"first_{name}": value for name, value in first.items()},
        **{f"usual_{name}": value for name, value in usual.items()},
    }


def _ms(sample: Sequence[float], percent: float) -> float | None:
    return round(percentile(sample, percent) * 1e3, 2) if sample else None


def _cell(sample: Sequence[float]) -> str:
    if not sample:
        return "-"
    middle, low, high, tail = (percentile(sample, p) * 1e3 for p in (50, 10, 90, 99))
    return f"{middle:.1f} ({low:.1f}-{high:.1f}), {tail:.1f}"

"""The results of a run: rows for JSON, targets, and tables for the terminal."""

from __future__ import annotations

from dataclasses import dataclass, field

from _harness.report import Row, Target
from _harness.summary import Summary, percentile
from cases import (
    GBIT,
    LEAST_SHARE,
    SIZES,
    STAR,
    SYSTEMS,
    TARGET_FROM,
    Size,
    ring_seconds,
    wire_seconds,
)
from rich.table import Table


@dataclass(kw_only=True)
class Results:
    """The measurements at one rate; all times are in seconds."""

    name: str
    """The name of the rate in tables, for example "1 Gbit/s"."""
    rate: int
    burst: int
    """The number of bytes that an idle port sends at once."""
    hops: list[float] = field(default_factory=list)
    """The times of all_reduces of one element through the node: two hops each."""
    single: dict[tuple[Size, str], list[float]] = field(default_factory=dict)
    """The times of single calls at the slowest worker, by size and system."""
    stream: dict[tuple[Size, str], list[float]] = field(default_factory=dict)
    """The times of one operation in a stream, by size and system: all time over all operations."""
    busy: dict[tuple[Size, str], list[float]] = field(default_factory=dict)
    """The number of busy cores of the machine during a stream, by size and system."""
    skipped: str = ""
    """The reason why nothing was measured; empty if it was."""

    @property
    def two_hops(self) -> float:
        return percentile(self.hops, 50)

    def bound(self, size: Size) -> float:
        """Return the shortest time of a streamed operation through the node, in seconds."""
        return wire_seconds(size.nbytes, self.rate)

    def single_bound(self, size: Size) -> float:
        """Return the shortest time of a single call through the aggregation node, in seconds.

        The bytes of a burst are sent at once and the other bytes at the rate; two hops are added.
        """
        return wire_seconds(max(0, size.nbytes - self.burst), self.rate) + self.two_hops

    def share(self, size: Size, system: str) -> float | None:
        """Return the percentage of the node's bound that a system reaches in single calls.

        A system is a plan or a library.
        """
        sample = self.single.get((size, system))
        if not sample:
            return None
        return 100 * self.single_bound(size) / percentile(sample, 50)

    def stream_share(self, size: Size, system: str) -> float | None:
        """Return the percentage of a port's rate that a plan or library reaches in a stream."""
        sample = self.stream.get((size, system))
        return 100 * self.bound(size) / percentile(sample, 50) if sample else None

    def rows(self) -> list[Row]:
        if self.skipped:
            return [Row(labels={"rate": self.name}, skipped=self.skipped)]
        rows = [
            Row(
                labels={"rate": self.name, "what": "two hops"},
                values=dict(Summary.of_seconds(self.hops).values()),
            )
        ]
        for mode, samples in (("one at a time", self.single), ("streamed", self.stream)):
            for (size, system), sample in samples.items():
                share = self.share if samples is self.single else self.stream_share
                rows.append(
                    Row(
                        labels={
                            "rate": self.name,
                            "size": size.name,
                            "system": system,
                            "mode": mode,
                        },
                        values={
                            **Summary.of_seconds(sample).values(),
                            "percent_of_star_bound": round(share(size, system) or 0, 1),
                            "ring_bound_us": round(ring_seconds(size.nbytes, self.rate) * 1e6, 1),
                            **self._busy(size, system, samples is self.stream),
                        },
                    )
                )
        return rows

    def _busy(self, size: Size, system: str, streams: bool) -> dict[str, float]:
        sample = self.busy.get((size, system))
        return {"busy_cores": round(percentile(sample, 50), 2)} if streams and sample else {}

    def targets(self) -> list[Target]:
        targets = []
        for size in SIZES:
            if size.nbytes < TARGET_FROM or (size is SIZES[-1] and self.rate < GBIT):
                continue
            for mode, share in (("one at a time", self.share), ("streamed", self.stream_share)):
                measured = share(size, STAR)
                targets.append(
                    Target(
                        name=f"{self.name}, {size.name}, {mode}: percent of the star's bound",
                        target=LEAST_SHARE,
                        measured=None if measured is None else round(measured, 2),
                    )
                )
        return targets

    def tables(self) -> list[Table]:
        if self.skipped:
            return []
        single = Table(
            "size", "bound", *SYSTEMS, "ring's bound", title=f"{self.name}: ms, one at a time"
        )
        stream = Table(
            "size", "bound", *SYSTEMS, "ring's bound", title=f"{self.name}: ms each, streamed"
        )
        for table, samples in ((single, self.single), (stream, self.stream)):
            for size in SIZES:
                if (size, STAR) not in samples:
                    continue  # A quick run leaves this size out.
                bound = self.single_bound(size) if table is single else self.bound(size)
                cells = [size.name, f"{bound * 1e3:.2f}"]
                for system in SYSTEMS:
                    sample = samples.get((size, system))
                    if not sample:
                        cells.append("-")
                        continue
                    low, median, high = (percentile(sample, p) * 1e3 for p in (10, 50, 90))
                    percent = 100 * bound / (median / 1e3)
                    busy = self._busy(size, system, table is stream)
                    cores = f", {busy['busy_cores']} cores" if busy else ""
                    cells.append(f"{median:.2f} ({low:.2f}-{high:.2f}) {percent:.1f} %{cores}")
                table.add_row(*cells, f"{ring_seconds(size.nbytes, self.rate) * 1e3:.2f}")
        return [single, stream]

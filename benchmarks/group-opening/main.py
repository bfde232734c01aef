"""Measure the time until a new process group can be used, and the resources that it takes.

The ranks are processes that have just started, with all imports, and processes that have opened
groups before.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch.distributed as dist
from _harness.machine import describe_machine
from _harness.options import Options, parse
from _harness.ranks import Ranks
from _harness.report import Report, Row, Scalar, Target
from _harness.rounds import in_turns
from _harness.summary import Summary
from fresh import PARTS as FRESH_PARTS
from fresh import fresh_cells, fresh_rows, fresh_targets, measure_fresh
from performer import TIMEOUT, Holdings, Performer, Turn
from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A backend, with the rails of slackline's engine."""

    name: str
    backend: str
    rails: str = "shm,tcp"


CONTESTANTS = (
    Contestant(name="slackline", backend="slackline"),
    Contestant(name="slackline-tcp", backend="slackline", rails="tcp"),
    Contestant(name="gloo", backend="gloo"),
)
SIZES, QUICK_SIZES = (8, 16, 32, 64), (8,)
ROUNDS, QUICK_ROUNDS = 7, 2
QUICK_SIZE_SECONDS = 9.0
"""The time after which a quick run starts no further round at a size."""
OVER_GLOO = 2.0
"""The largest allowed ratio of slackline's whole time to gloo's."""
PARTS = ("opening", "barrier", "4 KiB", "1 MiB", "whole")


def parts_of(turns: Sequence[Turn]) -> dict[str, float]:
    """Return the seconds of each part of a turn, from the first rank's start to the last's end."""
    begun = min(each.begun for each in turns)
    ends = [max(getattr(turn, name) for turn in turns) for name in ("opened", "met", "small")]
    ends.append(max(turn.large for turn in turns))
    spans = [end - start for start, end in zip([begun, *ends], ends, strict=False)]
    return dict(zip(PARTS, [*spans, ends[-1] - begun], strict=True))


@dataclass
class Sample:
    """The turns of one contestant with one number of ranks."""

    parts: list[dict[str, float]] = field(default_factory=list)
    held: list[Holdings] = field(default_factory=list)
    """The resources of each rank after the first turn; later turns reuse memory of earlier ones."""

    def add(self, turns: Sequence[Turn]) -> None:
        """Add the turns that all ranks took at the same time.

        The first turn gives the resources only, since it imports the modules of the contestant.
        """
        if self.held:
            self.parts.append(parts_of(turns))
        else:
            self.held = [turn.held for turn in turns]

    def summary(self, part: str) -> Summary:
        """Return the times of one part over all turns."""
        return Summary.of_seconds([each[part] for each in self.parts])

    def middle(self, resource: str) -> float:
        """Return the median over the ranks of one field of Holdings."""
        return median(getattr(each, resource) for each in self.held)

    def over(self, other: Sample) -> float:
        """Return the median, over the rounds, of the ratio of the whole time to `other`'s."""
        pairs = zip(self.parts, other.parts, strict=True)
        return round(median(ours["whole"] / theirs["whole"] for ours, theirs in pairs), 2)


def measure(size: int, options: Options) -> dict[str, Sample]:
    """Measure each contestant with `size` ranks of this host, in turns; return samples by name."""
    samples = {each.name: Sample() for each in CONTESTANTS}
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with Ranks(Performer, size, environment=environment) as ranks:
        ranks.ask("join", store.port)
        turn, started = 0, time.monotonic()
        for number in range(1 + (QUICK_ROUNDS if options.quick else ROUNDS)):
            if options.quick and number > 1 and time.monotonic() - started > QUICK_SIZE_SECONDS:
                break
            for each in in_turns(CONTESTANTS, number):
                samples[each.name].add(ranks.ask("turn", each.backend, each.rails, turn))
                turn += 1
    return samples


def rows_of(size: int, samples: dict[str, Sample]) -> list[Row]:
    """Return the report's rows for one number of ranks."""
    rows = []
    for name, sample in samples.items():
        labels: dict[str, Scalar] = {"processes": "warm", "ranks": size, "contestant": name}
        rows += [
            Row(labels={**labels, "part": part}, values=sample.summary(part).values())
            for part in PARTS
        ]
        held = {each: sample.middle(each) for each in ("resident_bytes", "descriptors", "threads")}
        rows.append(Row(labels={**labels, "part": "held by a rank"}, values=held))
    return rows


def measure_warm(options: Options) -> tuple[list[Row], list[Target], Table]:
    """Measure groups in processes that have opened groups before; return rows, targets, a table."""
    rows, targets = list[Row](), list[Target]()
    table = Table(
        "ranks", "contestant", *PARTS, "over gloo", "memory", "descriptors", "threads",
        title="warm processes, from the first rank's call to the last rank's end; the rest is held "
        "by one rank",
    )  # fmt: skip
    for size in QUICK_SIZES if options.quick else SIZES:
        samples = measure(size, options)
        rows += rows_of(size, samples)
        for name, sample in samples.items():
            ratio = sample.over(samples["gloo"])
            times = (f"{sample.summary(part).median_us / 1000:.1f} ms" for part in PARTS)
            table.add_row(
                str(size),
                name,
                *times,
                f"{ratio:.2f}x",
                f"{sample.middle('resident_bytes') / 1e6:.1f} MB",
                f"{sample.middle('descriptors'):g}",
                f"{sample.middle('threads'):g}",
            )
            if name != "gloo":
                about = f"{size} ranks: {name} over gloo"
                targets.append(
                    Target(name=about, target=OVER_GLOO, measured=ratio, bound="at most")
                )
    return rows, targets, table


def main() -> None:
    options = parse(
        "time until a new process group is of use: slackline and gloo", parts=("fresh", "warm")
    )
    machine = describe_machine()
    rows, targets, tables = list[Row](), list[Target](), list[Table]()
    if options.part != "warm":
        found = measure_fresh(quick=options.quick)
        rows += fresh_rows(found)
        targets += fresh_targets(found)
        table = Table(
            "ranks", "contestant", *FRESH_PARTS, "processor", "over gloo", "since exec",
            title="fresh processes, from the barrier after the import of torch to the last rank's "
            "end; processor time of a rank; the ratios to gloo, without and with the import",
        )  # fmt: skip
        for cells in fresh_cells(found):
            table.add_row(*cells)
        tables.append(table)
    if options.part != "fresh":
        more, bounds, table = measure_warm(options)
        rows += more
        targets += bounds
        tables.append(table)
    Report(machine=machine, rows=rows, targets=targets).print(tables, options)


if __name__ == "__main__":
    main()

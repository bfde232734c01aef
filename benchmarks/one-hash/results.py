"""The figures of a run: rows, targets and tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from _harness.report import Row, Target
from cases import (
    ACCUMULATED,
    BATCH,
    CERTIFICATE,
    DDP,
    HASHED,
    HASHES,
    MOST_CERTIFICATE,
    MOST_PRICE,
    MOST_UNEVEN_WIRE,
    MOST_WIRE,
    PRICE,
    PRICED,
    SAMPLES,
    TREE,
    UNHASHED,
    VIRTUAL_RANKS,
    Training,
)
from rich.table import Table


@dataclass
class Price:
    """The steps of one way to train: a value for each round."""

    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    """The processor's seconds of a step, of all ranks together."""
    sent: list[float] = field(default_factory=list)
    """The bytes that all ranks have sent in a step."""


@dataclass
class Results:
    """All figures; a part that was not measured has a reason in `skipped`."""

    hashes: dict[tuple[Training, int], set[str]] = field(default_factory=dict)
    """The hashes of the ranks, by training and number of ranks."""
    prices: dict[tuple[int, int], dict[str, Price]] = field(default_factory=dict)
    """The prices of the ways, by the numbers of ranks and of virtual ranks."""
    certified: dict[int, dict[str, Price]] = field(default_factory=dict)
    """The prices of training with hashes and without, by the number of ranks."""
    divided: dict[int, float] = field(default_factory=dict)
    """The seconds of a step, by the number of virtual ranks of one rank."""
    skipped: dict[str, str] = field(default_factory=dict)

    def trainings(self) -> Iterator[tuple[Training, set[str]]]:
        """Yield each training with all its hashes."""
        for training in dict.fromkeys(each for each, _ in self.hashes):
            yield training, set().union(*(h for (t, _), h in self.hashes.items() if t == training))

    def rows(self) -> list[Row]:
        found = [Row(labels={"part": part}, skipped=why) for part, why in self.skipped.items()]
        sizes = sorted({size for _, size in self.hashes})
        for training, every in self.trainings():
            labels = {"part": HASHES, **training._asdict(), "ranks": " ".join(map(str, sizes))}
            found.append(Row(labels=labels, values={"hashes": len(every), "hash": min(every)}))
        for (size, virtual_ranks), ways in self.prices.items():
            for way, price in ways.items():
                labels = {"part": PRICE, "ranks": size, "virtual_ranks": virtual_ranks, "way": way}
                values = {
                    "step_ms": 1e3 * median(price.seconds),
                    "processor_ms": 1e3 * median(price.processor),
                    "sent_bytes": median(price.sent),
                }
                found.append(Row(labels=labels, values=values))
        for size, ways in self.certified.items():
            for way, price in ways.items():
                labels = {"part": CERTIFICATE, "ranks": size, "way": way}
                values = {
                    "step_ms": 1e3 * median(price.seconds),
                    "processor_ms": 1e3 * median(price.processor),
                }
                found.append(Row(labels=labels, values=values))
        for count, seconds in self.divided.items():
            labels = {"part": SAMPLES, "virtual_ranks": count, "samples": BATCH[PRICED] // count}
            found.append(Row(labels=labels, values={"step_ms": 1e3 * seconds}))
        return found

    def targets(self) -> list[Target]:
        most = max((len(every) for _, every in self.trainings()), default=None)
        found = [Target(name="hashes of a training", target=1, measured=most, bound="at most")]
        for (size, virtual_ranks), ways in self.prices.items():
            what = f"{size} ranks, {virtual_ranks} virtual ranks"
            time = ratio(ways[TREE].seconds, ways[ACCUMULATED].seconds)
            used = ratio(ways[TREE].processor, ways[ACCUMULATED].processor)
            found += [
                Target(
                    name=f"step in the tree over plain accumulation, {what}",
                    target=MOST_PRICE,
                    measured=time,
                    bound="at most",
                ),
                Target(
                    name=f"its processor time, {what}", target=1.03, measured=used, bound="at most"
                ),
            ]
            if size > 1 and virtual_ranks == VIRTUAL_RANKS:
                wire = ratio(ways[TREE].sent, ways[ACCUMULATED].sent)
                most = MOST_UNEVEN_WIRE if VIRTUAL_RANKS % size else MOST_WIRE
                found.append(
                    Target(name=f"its bytes, {what}", target=most, measured=wire, bound="at most")
                )
            if DDP in ways:
                found.append(
                    Target(
                        name=f"step in the tree over DDP over gloo, {what}",
                        target=1.0,
                        measured=ratio(ways[TREE].seconds, ways[DDP].seconds),
                        bound="at most",
                    )
                )
        for size, both in self.certified.items():
            used = ratio(both[HASHED].processor, both[UNHASHED].processor)
            name = f"processor time with a hash of each step over without, {size} ranks"
            found.append(Target(name=name, target=MOST_CERTIFICATE, measured=used, bound="at most"))
        return found

    def tables(self) -> list[Table]:
        same = Table("model", "precision", "optimizer", "hashes", "hash", title="hashes")
        for training, every in self.trainings():
            same.add_row(*training, str(len(every)), min(every))
        cost = Table("ranks", "virtual ranks", "way", "step ms", "processor ms", "bytes sent")
        for (size, virtual_ranks), ways in self.prices.items():
            for way, price in ways.items():
                figures = (1e3 * median(price.seconds), 1e3 * median(price.processor))
                cost.add_row(
                    str(size),
                    str(virtual_ranks),
                    way,
                    *(f"{figure:.1f}" for figure in figures),
                    f"{median(price.sent):.0f}",
                )
        for size, ways in self.certified.items():
            for way, price in ways.items():
                figures = (1e3 * median(price.seconds), 1e3 * median(price.processor))
                cost.add_row(
                    str(size),
                    str(VIRTUAL_RANKS),
                    way,
                    *(f"{figure:.1f}" for figure in figures),
                    "",
                )
        curve = Table("virtual ranks", "samples of each", "step ms", title="one rank")
        for count, seconds in self.divided.items():
            curve.add_row(str(count), str(BATCH[PRICED] // count), f"{1e3 * seconds:.1f}")
        return [same, cost, curve]


def ratio(mine: list[float], theirs: list[float]) -> float:
    """Return the median of the ratios of the rounds."""
    return median(one / other for one, other in zip(mine, theirs, strict=True) if other)

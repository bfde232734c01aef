"""The measurements of all parts, their rows, tables and targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from _harness.report import Row, Target
from cases import BF16, COST, DIGITS, FP32, GPT, LAST, NETWORKS, RANKS, SIZES_MB, TYPES
from rich.table import Table

MOST_POINTS = 0.5
"""The most percentage points of right answers that bf16 may cost the digits network."""
MOST_LOSS = 1.01
"""The largest allowed ratio of the GPT's held-out loss with bf16 to that with fp32."""
MOST_BYTES = 0.52
"""The largest allowed ratio of the bytes on the wire; half of the gradients' bytes, with headers
and acknowledgements that do not become fewer."""
LEAST_GAIN = {"lab-1g": 1.2, "lab-200m": 1.5}
"""The smallest allowed ratios of a step with fp32 to a step with bf16, by network."""
LEAST_GBPS = 1.0
"""The smallest allowed rate of a port below which the conversion pays."""


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The result of one training."""

    losses: Sequence[float]
    """The loss of each step in nats, averaged over the ranks."""
    held_out: float
    accuracy: float

    @property
    def last(self) -> float:
        """The mean loss of the last steps."""
        return fmean(self.losses[-LAST:])


@dataclass
class Steps:
    """The measured steps of both types on one network, one value for each round."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in TYPES})
    """The seconds of a step of the slowest rank."""
    sent: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in TYPES})
    """The bytes of a step that all hosts have sent; empty where no wire is."""

    def gain(self) -> float:
        """Return the median over the rounds of a step's time with fp32 over that with bf16."""
        return median(_ratios(self.seconds))

    def bytes_ratio(self) -> float | None:
        """Return the bytes with bf16 over those with fp32; None where no wire is."""
        return 1 / median(_ratios(self.sent)) if self.sent[FP32] else None


def _ratios(values: dict[str, list[float]]) -> list[float]:
    return [first / second for first, second in zip(values[FP32], values[BF16], strict=True)]


def break_even_gbps(nbytes: int, convert_s: float) -> float:
    """Return the rate of a port in Gbit/s at which rounding and widening take the time they save.

    An all_reduce of n ranks sends 2 (n - 1)/n of the bytes through each port, and bf16 halves them.
    """
    saved = (RANKS - 1) / RANKS * nbytes
    return 8 * saved / convert_s / 1e9


class Results:
    """The measurements so far; what was not measured has a reason."""

    def __init__(self) -> None:
        self.reached: dict[tuple[str, int, str], Reached] = {}
        """The results of trainings, by model, seed and type."""
        self.steps: dict[str, Steps] = {}
        """The steps on each network, by its name."""
        self.converted: dict[int, tuple[float, float]] = {}
        """The median seconds of rounding and of widening, by the MB of fp32 gradients."""
        self.skipped: dict[str, str] = {}
        """The reasons why parts were not measured."""

    def rows(self) -> list[Row]:
        """Return a row for each training, network and length, and for each skipped part."""
        rows = [
            Row(
                labels={"part": model, "seed": seed, "type": kind, "ranks": RANKS},
                values={
                    "steps": len(found.losses),
                    "loss": round(found.last, 4),
                    "held_out_loss": round(found.held_out, 4),
                    "accuracy_percent": round(100 * found.accuracy, 2),
                },
                series={"losses": [round(each, 4) for each in found.losses]},
            )
            for (model, seed, kind), found in self.reached.items()
        ]
        for name, steps in self.steps.items():
            for kind in TYPES:
                values = {"step_ms": round(1e3 * median(steps.seconds[kind]), 2)}
                if steps.sent[kind]:
                    values["sent_mb"] = round(median(steps.sent[kind]) / 1e6, 3)
                values["rounds"] = len(steps.seconds[kind])
                rows.append(Row(labels={"part": name, "type": kind, "ranks": RANKS}, values=values))
        for size, (rounding_s, widening_s) in self.converted.items():
            rows.append(
                Row(
                    labels={"part": COST, "mb": size},
                    values={
                        "round_ms": round(1e3 * rounding_s, 3),
                        "widen_ms": round(1e3 * widening_s, 3),
                        "pays_below_gbps": round(
                            break_even_gbps(size * 10**6, rounding_s + widening_s), 1
                        ),
                    },
                )
            )
        rows += [
            Row(labels={"part": part}, skipped=reason) for part, reason in self.skipped.items()
        ]
        return rows

    def points(self) -> float | None:
        """Return the percentage points of the digits' right answers that bf16 costs, on average."""
        lost = [
            self.reached[DIGITS, seed, FP32].accuracy - self.reached[DIGITS, seed, BF16].accuracy
            for seed in self._seeds(DIGITS)
        ]
        return 100 * fmean(lost) if lost else None

    def loss_ratio(self, model: str) -> float | None:
        """Return the held-out loss with bf16 over that with fp32, as a mean over the seeds."""
        ratios = [
            self.reached[model, seed, BF16].held_out / self.reached[model, seed, FP32].held_out
            for seed in self._seeds(model)
        ]
        return fmean(ratios) if ratios else None

    def _seeds(self, model: str) -> list[int]:
        return sorted({seed for name, seed, _ in self.reached if name == model})

    def targets(self) -> list[Target]:
        """Return all targets; a target whose part was skipped has no measured number."""
        found = [
            Target(
                name="digits: right answers with fp32 less those with bf16, percentage points",
                target=MOST_POINTS,
                measured=self.points(),
                bound="at most",
            ),
            Target(
                name="gpt: held-out loss with bf16 / with fp32",
                target=MOST_LOSS,
                measured=self.loss_ratio(GPT),
                bound="at most",
            ),
        ]
        for network in NETWORKS:
            steps = self.steps.get(network.name)
            if network.name not in LEAST_GAIN:
                continue
            found += [
                Target(
                    name=f"{network.name}: bytes on the wire with bf16 / with fp32",
                    target=MOST_BYTES,
                    measured=None if steps is None else steps.bytes_ratio(),
                    bound="at most",
                ),
                Target(
                    name=f"{network.name}: step with fp32 / with bf16",
                    target=LEAST_GAIN[network.name],
                    measured=None if steps is None else steps.gain(),
                ),
            ]
        paid = [
            break_even_gbps(size * 10**6, sum(self.converted[size]))
            for size in SIZES_MB
            if size in self.converted
        ]
        found.append(
            Target(
                name="rate of a port up to which the conversion pays, Gbit/s",
                target=LEAST_GBPS,
                measured=min(paid) if paid else None,
            )
        )
        return found

    def tables(self) -> list[Table]:
        """Return the tables of trainings, networks and conversions."""
        losses = Table("model", "seed", "type", "steps", "loss", "held out", "right", title="loss")
        for (model, seed, kind), reached in self.reached.items():
            figures = f"{reached.last:.4f}", f"{reached.held_out:.4f}", f"{reached.accuracy:.2%}"
            losses.add_row(model, str(seed), kind, str(len(reached.losses)), *figures)
        steps = Table("network", "type", "step ms", "sent MB", "fp32 / bf16", title="steps")
        for name, measured in self.steps.items():
            for kind in TYPES:
                sent = measured.sent[kind]
                steps.add_row(
                    name,
                    kind,
                    f"{1e3 * median(measured.seconds[kind]):.1f}",
                    f"{median(sent) / 1e6:.2f}" if sent else "-",
                    f"{measured.gain():.2f}" if kind == BF16 else "",
                )
        cost = Table("MB of fp32", "round ms", "widen ms", "pays below Gbit/s", title="conversion")
        for size, (rounding_s, widening_s) in self.converted.items():
            below = break_even_gbps(size * 10**6, rounding_s + widening_s)
            cost.add_row(
                str(size), f"{1e3 * rounding_s:.3f}", f"{1e3 * widening_s:.3f}", f"{below:.1f}"
            )
        return [losses, steps, cost]

    def notes(self) -> list[str]:
        """Return a line for each part that was not measured."""
        return [f"{part}: {reason}" for part, reason in self.skipped.items()]

"""The results of a run: rows for JSON, targets, and a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from _harness.report import Row, Scalar, Target
from _harness.summary import Summary
from cases import (
    CASES,
    GLOO_OVER_OURS,
    IDLE_MS_PER_SECOND,
    IDLE_RANKS,
    OPENMPI_OVER_OURS,
    Case,
    Transport,
    seat,
)
from rich.table import Table

CONTESTANTS = ("slackline", "engine", "gloo", "openmpi")
"""The contestants: slackline and gloo through torch.distributed, the bare engine, OpenMPI."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """The message size, the transport and the library that a time belongs to."""

    case: Case
    transport: Transport
    contestant: str
    """The library: a member of CONTESTANTS."""


@dataclass(kw_only=True)
class Results:
    """The measurements of all contestants so far."""

    times: dict[Key, Summary | str] = field(default_factory=dict)
    """A summary of the times, or the reason why there is none."""
    idle_ms: dict[str, list[float]] = field(default_factory=dict)
    """The processor time of each idle rank in a second, in milliseconds, by rails."""

    def record(
        self,
        case: Case,
        transports: Sequence[Transport],
        samples: Mapping[str, Sequence[float]],
        missing: Mapping[str, str | None],
    ) -> None:
        """Store the measured times of one message size, and reasons for missing libraries.

        The keys of `samples` are the names of turns (see `seat`).
        """
        for transport in transports:
            for contestant in CONTESTANTS:
                key = Key(case=case, transport=transport, contestant=contestant)
                sample = samples.get(seat(contestant, transport))
                reason = missing.get(contestant) or "not measured"
                self.times[key] = Summary.of_seconds(sample) if sample else reason

    def rows(self) -> list[Row]:
        rows = [_row(key, time) for key, time in self.times.items()]
        for rails, ranks_ms in self.idle_ms.items():
            labels: dict[str, Scalar] = {"what": "idle engine", "ranks": IDLE_RANKS, "rails": rails}
            values = {"slowest_rank_cpu_ms_per_s": max(ranks_ms), "all_ranks": sum(ranks_ms)}
            rows.append(Row(labels=labels, values={k: round(v, 3) for k, v in values.items()}))
        return rows

    def targets(self) -> list[Target]:
        asked = ((GLOO_OVER_OURS, "gloo"), (OPENMPI_OVER_OURS, "openmpi"))
        targets = [
            Target(
                name=f"{case.ranks} ranks, {case.name}, {transport}: {other} over slackline",
                target=ratio,
                measured=self.ratio(case, transport, other),
            )
            for table, other in asked
            for case in CASES
            for transport, ratio in table.get((case.ranks, case.name), {}).items()
        ]
        for rails, ranks_ms in self.idle_ms.items():
            targets.append(
                Target(
                    name=f"{IDLE_RANKS} idle ranks, {rails} rails: processor ms a second, any rank",
                    target=IDLE_MS_PER_SECOND,
                    measured=round(max(ranks_ms), 3),
                    bound="at most",
                )
            )
        return targets

    def ratio(
        self, case: Case, transport: Transport, other: str, of: str = "median_us"
    ) -> float | None:
        """Return the ratio of the time of `other` to slackline's; None if one was skipped."""
        theirs, ours = (
            self.times.get(Key(case=case, transport=transport, contestant=contestant))
            for contestant in (other, "slackline")
        )
        if not isinstance(theirs, Summary) or not isinstance(ours, Summary):
            return None
        return round(theirs.values()[of] / ours.values()[of], 2)

    def table(self) -> Table:
        """Return a table of medians (10th-90th percentiles), a line for each size and transport."""
        table = Table(
            *("ranks", "bytes", "transport", *CONTESTANTS),
            *("gloo / slackline", "of the p10", "target"),
            title="all_reduce float32 SUM, time a call: median (p10-p90)",
        )
        for case in CASES:
            for transport in Transport:
                keys = [Key(case=case, transport=transport, contestant=c) for c in CONTESTANTS]
                times = [self.times.get(key, "not measured") for key in keys]
                ratios = [self.ratio(case, transport, "gloo", of) for of in ("median_us", "p10_us")]
                table.add_row(
                    str(case.ranks),
                    case.name,
                    str(transport),
                    *(str(time) if isinstance(time, Summary) else "skipped" for time in times),
                    *("-" if ratio is None else f"{ratio:.1f}x" for ratio in ratios),
                    f"{GLOO_OVER_OURS[case.ranks, case.name][transport]:g}x",
                )
        return table

    def notes(self) -> list[str]:
        """Return the reasons why contestants were skipped, once each."""
        reasons = {(k.contestant, v) for k, v in self.times.items() if isinstance(v, str)}
        return [f"{contestant} skipped: {reason}" for contestant, reason in sorted(reasons)]


def _row(key: Key, time: Summary | str) -> Row:
    labels: dict[str, Scalar] = {
        "what": "all_reduce",
        "ranks": key.case.ranks,
        "bytes": key.case.nbytes,
        "transport": str(key.transport),
        "contestant": key.contestant,
    }
    if isinstance(time, str):
        return Row(labels=labels, skipped=time)
    return Row(labels=labels, values={**time.values(), "calls_a_round": key.case.calls})

"""The part "computing": pipelines whose stages compute, the blocks of a small GPT.

All contestants live in the same processes and take turns. The ranks share the cores of the machine,
or each rank is pinned to a core of its own. The table begins with the fastest contestant, so that
rows in which torch's schedules win stand above slackline's.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from _harness.options import Options
from _harness.ranks import Ranks
from _harness.report import Row, Target
from _harness.rounds import in_turns
from _harness.summary import percentile
from computing_rank import AUTO, CONTESTANTS, OURS, SMALL_GPT, Contestant, Gpt, Trainer, Turn
from rich.table import Table

PART = "computing"
ROUNDS, QUICK_ROUNDS = 15, 3
MOST_TURNS = 150
"""The turns of four steps in which a trial of plans must end."""
LEAD_NS = 20_000_000
"""The time from the main process's request to the moment at which the ranks begin."""
AS_FAST_AS_TORCH = 0.98
"""The smallest allowed ratio of the best of torch's schedules to `auto`, in time of a step."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
SHARED, PINNED = "shared", "one each"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The ranks of a pipeline and their cores."""

    ranks: int
    cores: str

    def __str__(self) -> str:
        return f"{self.ranks} ranks, cores {self.cores}"


SETTINGS = (
    Setting(ranks=2, cores=SHARED),
    Setting(ranks=4, cores=SHARED),
    Setting(ranks=2, cores=PINNED),
    Setting(ranks=4, cores=PINNED),
)
QUICK_SETTINGS = SETTINGS[:1]


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The steps of one contestant in one setting, averaged over each round."""

    wall_ms: tuple[float, ...]
    processor_ms: tuple[float, ...]
    """The processor time of a step in all threads of all ranks."""

    @classmethod
    def of(cls, rounds: list[list[Turn]], gpt: Gpt) -> Steps:
        """Compute the times of rounds, each of which has every rank's turn."""
        wall = [max(r.end_ns for r in each) - min(r.start_ns for r in each) for each in rounds]
        processor = [sum(r.processor_ns for r in each) for each in rounds]
        per_ms = gpt.steps * 1e6
        return cls(
            wall_ms=tuple(each / per_ms for each in wall),
            processor_ms=tuple(each / per_ms for each in processor),
        )

    def values(self) -> dict[str, float]:
        """Return the figures by name, as the values of a report's row."""
        return {
            "median_ms": round(percentile(self.wall_ms, 50), 2),
            "p10_ms": round(percentile(self.wall_ms, 10), 2),
            "p90_ms": round(percentile(self.wall_ms, 90), 2),
            "processor_ms": round(percentile(self.processor_ms, 50), 2),
            "rounds": len(self.wall_ms),
        }


@dataclass(kw_only=True)
class Computed:
    """The measurements of the part so far."""

    steps: dict[tuple[Setting, str], Steps] = field(default_factory=dict)
    skipped: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def ratio(self, setting: Setting, ours: str = AUTO) -> float | None:
        """Return the step of torch's fastest contestant over that of `ours`; None if unmeasured.

        The ratio is the median over the rounds, so that the load of a moment counts for both.
        """
        mine = self.steps.get((setting, ours))
        torchs = [self.steps.get((setting, each.name)) for each in CONTESTANTS if each.torch]
        rivals = [each.wall_ms for each in torchs if each is not None]
        if mine is None or not rivals:
            return None
        best = min(rivals, key=lambda each: percentile(each, 50))
        ratios = [there / here for here, there in zip(mine.wall_ms, best, strict=True)]
        return round(percentile(ratios, 50), 3)

    def rows(self) -> list[Row]:
        """Return a row for each contestant and setting, the fastest first."""
        found = [
            Row(labels={**_labels(setting), "contestant": name}, values=self._values(setting, name))
            for setting, name in self._in_order()
        ]
        return [*found, *self.skipped]

    def tables(self) -> list[Table]:
        """Return one table for each setting, the fastest contestant first."""
        found = []
        for setting in SETTINGS:
            names = [name for where, name in self._in_order() if where == setting]
            if not names:
                continue
            title = f"{PART}, {setting}: ms a step"
            table = Table("contestant", "ms [10 %, 90 %]", "processor ms", title=title)
            for name in names:
                each = self._values(setting, name)
                wall = "{median_ms:.1f} [{p10_ms:.1f}, {p90_ms:.1f}]".format(**each)
                table.add_row(name, wall, f"{each['processor_ms']:.1f}")
            found.append(table)
        return found

    def targets(self) -> list[Target]:
        """Return the targets of all settings."""
        return [
            Target(
                name=f"{PART}, {setting}: torch's best over {AUTO}",
                target=AS_FAST_AS_TORCH,
                measured=self.ratio(setting),
            )
            for setting in SETTINGS
        ]

    def _in_order(self) -> list[tuple[Setting, str]]:
        return sorted(
            self.steps,
            key=lambda key: (SETTINGS.index(key[0]), percentile(self.steps[key].wall_ms, 50)),
        )

    def _values(self, setting: Setting, name: str) -> dict[str, float]:
        return self.steps[setting, name].values()


def measure(options: Options) -> Computed:
    """Measure all settings that the machine has the cores for."""
    found = Computed()
    cores = sorted(os.sched_getaffinity(0))
    for setting in SETTINGS:
        if options.quick and setting not in QUICK_SETTINGS:
            found.skipped.append(Row(labels=_labels(setting), skipped="left out by --quick"))
        elif setting.cores == PINNED and len(cores) < setting.ranks:
            reason = f"{setting.ranks} ranks need a core each; this machine has {len(cores)} cores"
            found.skipped.append(Row(labels=_labels(setting), skipped=reason))
        else:
            _play(setting, cores if setting.cores == PINNED else None, found, options)
    return found


def _play(setting: Setting, cores: list[int] | None, found: Computed, options: Options) -> None:
    entries = [each for each in CONTESTANTS if each.quick or not options.quick]
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    with Ranks(Trainer, setting.ranks, environment=ENVIRONMENT) as ranks:
        ranks.ask("prepare", SMALL_GPT, [each.name for each in entries], cores)
        for entry in entries:
            for _ in range(entry.warm_up):
                _turn(ranks, entry)
            if entry.name == AUTO:
                _settle(ranks, entry)
        turns: dict[str, list[list[Turn]]] = {each.name: [] for each in entries}
        for number in range(rounds):
            for entry in in_turns(entries, number):
                turns[entry.name].append(_turn(ranks, entry))
        for name, each in turns.items():
            found.steps[setting, name] = Steps.of(each, SMALL_GPT)
        for name in OURS:
            if name in turns:
                said = ranks.ask("report", name)[0]
                found.notes += [f"{PART}, {setting}, {name}: {reason}" for reason in said]
        ranks.ask("close")


def _settle(ranks: Ranks, entry: Contestant) -> None:
    """Train until the pipeline's trial of plans has ended; raise TimeoutError if it does not."""
    for _ in range(MOST_TURNS):
        if ranks.ask("settled", entry.name)[0]:
            return
        _turn(ranks, entry)
    raise TimeoutError(f"the trial of plans did not end within {MOST_TURNS} turns")


def _turn(ranks: Ranks, entry: Contestant) -> list[Turn]:
    return ranks.ask("turn", entry.name, time.monotonic_ns() + LEAD_NS)


def _labels(setting: Setting) -> dict[str, str | int]:
    return {"part": PART, "ranks": setting.ranks, "cores": setting.cores}

"""The part "own-cost": the runtime's own cost of a computation, on two ranks of one host.

The stages do nothing, so all that a step takes is the runtime's and torch's. From the processor
time of a step the time of the same forwards and backwards without a pipeline is subtracted. The
counts of calls and of switches between threads hardly depend on the load of the machine; the
smallest times do so less than the medians.
"""

from __future__ import annotations

from dataclasses import dataclass

from _harness.options import Options
from _harness.ranks import Ranks
from _harness.report import Row, Target
from _harness.summary import percentile
from own_cost_rank import Idler, Measured
from rich.table import Table

PART = "own-cost"
RANKS = 2
STEPS, QUICK_STEPS = 300, 60
MOST_US = 150
"""The largest allowed processor time of a computation beside the stage's own work."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, kw_only=True)
class OwnCost:
    """The measurements of the part; without ranks if it was not run."""

    ranks: tuple[Measured, ...] = ()

    def rows(self) -> list[Row]:
        """Return a row for each rank, with the figures of one computation."""
        return [
            Row(labels={"part": PART, "rank": rank}, values=self._values(each))
            for rank, each in enumerate(self.ranks)
        ]

    def tables(self) -> list[Table]:
        """Return the table of all ranks."""
        if not self.ranks:
            return []
        title = f"{PART}: a computation of a stage that does nothing"
        names = ("rank", "processor us [10 %]", "with other threads", "without a pipeline")
        table = Table(*names, "calls", "switches", title=title)
        for rank, each in enumerate(self.ranks):
            found = self._values(each)
            table.add_row(
                str(rank),
                "{own_us:.0f} [{own_p10_us:.0f}]".format(**found),
                "{process_us:.0f}".format(**found),
                "{plain_us:.0f}".format(**found),
                "{calls:.0f}".format(**found),
                "{switches:.2f}".format(**found),
            )
        return [table]

    def targets(self) -> list[Target]:
        """Return the target, for the rank on which a computation costs most."""
        costs = [percentile(each.own_us, 50) for each in self.ranks]
        return [
            Target(
                name=f"{PART}: processor us of a computation of a stage that does nothing",
                target=MOST_US,
                measured=round(max(costs), 1) if costs else None,
                bound="at most",
            )
        ]

    @staticmethod
    def _values(each: Measured) -> dict[str, float]:
        return {
            "own_us": round(percentile(each.own_us, 50), 1),
            "own_p10_us": round(percentile(each.own_us, 10), 1),
            "process_us": round(percentile(each.process_us, 50), 1),
            "plain_us": round(percentile(each.plain_us, 50), 1),
            "calls": round(each.calls, 1),
            "switches": round(each.switches, 2),
        }


def measure(options: Options) -> OwnCost:
    """Measure both ranks of a pipeline of two stages that do nothing."""
    with Ranks(Idler, RANKS, environment=ENVIRONMENT) as ranks:
        steps = QUICK_STEPS if options.quick else STEPS
        found = ranks.ask("measure", steps)
        ranks.ask("close")
    return OwnCost(ranks=tuple(found))

"""Plans in which all hosts do the same: a cyclic renumbering of the hosts leaves them unchanged.

Renumbering host h as h + 1 maps rank h * q + j, rank j of host h, to rank (h + 1) * q + j. The
ranks of a plan are alike if the map, applied to the ranks and chunks in each rank's program, gives
the program of the rank that it maps this rank to.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from slackline.errors import UsageError
from slackline.plan.collective import Collective, CollectivePlan

__all__ = ["Rotation"]

_ALIKE: Mapping[tuple[Collective, str], bool] = MappingProxyType(
    {
        (Collective.ALL_REDUCE, "ring"): True,
        (Collective.ALL_REDUCE, "mesh"): True,
        (Collective.ALL_REDUCE, "hierarchical"): True,
        (Collective.ALL_REDUCE, "direct"): False,
        (Collective.REDUCE_SCATTER, "ring"): True,
        (Collective.REDUCE_SCATTER, "mesh"): True,
        (Collective.ALL_GATHER, "ring"): True,
        (Collective.ALL_GATHER, "mesh"): True,
    }
)
"""The plans whose ranks are alike, and whether their chunks are renumbered like the ranks."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """The cyclic renumbering of a plan's hosts that leaves the plan unchanged."""

    hosts: int
    ranks_per_host: int
    turns_chunks: bool
    """Whether chunk h * q + j becomes chunk (h + 1) * q + j, or stays as it is."""

    @classmethod
    def of(cls, plan: CollectivePlan, ranks_per_host: int) -> "Rotation":
        """Return the shift of ranks and chunks that maps a plan to itself.

        Raises UsageError for a plan whose ranks do not all do the same work.
        """
        turns = _ALIKE.get((plan.collective, plan.name))
        if turns is None:
            known = ", ".join(sorted({name for _, name in _ALIKE}))
            raise UsageError(f"the ranks of {plan} are not alike; plans with alike ranks: {known}")
        if ranks_per_host < 1 or plan.ranks % ranks_per_host:
            raise UsageError(
                f"ranks_per_host must be a divisor of {plan.ranks} ranks, not {ranks_per_host}"
            )
        return cls(plan.ranks // ranks_per_host, ranks_per_host, turns)

    def turned(self, number: int, by: int) -> int:
        """Return the number of a rank after its host h has been renumbered as h + `by`."""
        host, local = divmod(number, self.ranks_per_host)
        return (host + by) % self.hosts * self.ranks_per_host + local

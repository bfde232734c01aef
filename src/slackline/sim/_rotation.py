"""Plans that look alike from every host.

Turning the hosts by one maps rank h * q + j, rank j of host h, to rank (h + 1) * q + j. A plan is
alike where that maps the program of each rank to the program of another, chunks included.
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
"""The plans that are alike, and whether their chunks turn with the ranks."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """A turn of the hosts of a plan, under which all ranks' programs are alike."""

    hosts: int
    ranks_per_host: int
    turns_chunks: bool
    """Whether chunk h * q + j becomes chunk (h + 1) * q + j, or stays as it is."""

    @classmethod
    def of(cls, plan: CollectivePlan, ranks_per_host: int) -> "Rotation":
        """Return the rotation of a plan; raise UsageError where its ranks are not alike."""
        turns = _ALIKE.get((plan.collective, plan.name))
        if turns is None:
            known = ", ".join(sorted({name for _, name in _ALIKE}))
            raise UsageError(f"the ranks of {plan} are not alike; those of {known} are")
        if ranks_per_host < 1 or plan.ranks % ranks_per_host:
            raise UsageError(
                f"ranks_per_host must be a divisor of {plan.ranks} ranks, not {ranks_per_host}"
            )
        return cls(plan.ranks // ranks_per_host, ranks_per_host, turns)

    def turned(self, number: int, by: int) -> int:
        """Return the number of a rank after so many turns."""
        host, local = divmod(number, self.ranks_per_host)
        return (host + by) % self.hosts * self.ranks_per_host + local

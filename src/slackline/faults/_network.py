"""The state of a network under faults at one moment: the effects on links, NICs and paths."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from slackline.faults._model import NOTHING, Effects

__all__ = ["NetworkState"]

_Table = Mapping[tuple[int, int], Effects]


@dataclass(frozen=True, kw_only=True)
class NetworkState:
    """The effects on all links and NICs that have a fault. The default has no fault."""

    pairs: _Table = field(default_factory=dict)
    """The effects of link faults by (from host, to host), which apply to every NIC."""
    nics: _Table = field(default_factory=dict)
    """The effects of NIC faults by (host, NIC), which apply in both directions."""

    def on(self, source: tuple[int, int], target: tuple[int, int]) -> Effects:
        """Return the effects on packets from one NIC to another; each is given as (host, NIC).

        These are the effects on the link between the two hosts and on both NICs.
        """
        effects = self.pairs.get((source[0], target[0]), NOTHING)
        return effects | self.nics.get(source, NOTHING) | self.nics.get(target, NOTHING)

    def paths(self, hosts: int, nics: int) -> dict[tuple[int, int, int], Effects]:
        """Return the effects on each path that has a fault, by (from host, to host, NIC).

        NIC i of one host reaches NIC i of another, on `hosts` hosts with `nics` NICs each.
        """
        found = {(source, target, nic) for source, target in self.pairs for nic in range(nics)}
        for host, nic in self.nics:
            for peer in range(hosts):
                if peer != host:
                    found |= {(host, peer, nic), (peer, host, nic)}
        return {
            (source, target, nic): self.on((source, nic), (target, nic))
            for source, target, nic in found
        }

    def __or__(self, other: Self) -> Self:
        """Combine the faults of two plans; effects on the same link or NIC add up."""
        return type(self)(
            pairs=_combined(self.pairs, other.pairs), nics=_combined(self.nics, other.nics)
        )


def _combined(one: _Table, other: _Table) -> _Table:
    more = {key: one.get(key, NOTHING) | effects for key, effects in other.items()}
    return {**one, **more}

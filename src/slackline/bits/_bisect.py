"""The virtual rank, tensor and rank at which two runs part, in the first step that differs.

gradients differ                  >  the computation of that virtual rank
gradients equal, sums differ      >  the reduction
sums equal, state differs         >  clipping or the optimizer
"""

from dataclasses import dataclass, field

from slackline.bits._compare import Comparison, compare
from slackline.bits._evidence import Evidence
from slackline.records import TensorHashes, differences

__all__ = ["Parting", "bisect"]

_CAUSES = {
    "gradients": "the computation of this virtual rank: its samples, random numbers and kernels",
    "sums": "the sum over the virtual ranks: the reduction, or a gradient changed on the way",
    "state": "what follows the sum: clipping, or the optimizer's step",
}


@dataclass(frozen=True, kw_only=True)
class Parting:
    """The place at which two runs part."""

    comparison: Comparison
    """The steps that are equal, and the first one that is not."""
    what: str = ""
    """The kind of the first tensor that differs, "gradients", "sums" or "state"; empty without
    recorded hashes of tensors in both runs."""
    virtual_rank: int = -1
    """The virtual rank whose gradients differ; -1 for sums and the state."""
    tensor: str = ""
    """The name of the first tensor that differs: of gradients in the order of the backward pass."""
    differing: int = 0
    """The number of tensors of this kind that differ."""
    tensors: int = 0
    """The number of tensors of this kind."""
    ranks: tuple[int, int] = (0, 0)
    """The rank that has computed them, in each run."""
    conditions: tuple[tuple[str, str, str], ...] = field(default=())
    """The name and both values of each condition that differs between these ranks."""

    @property
    def cause(self) -> str:
        """The part of a step in which the difference arises."""
        return _CAUSES.get(self.what, "")


def bisect(one: Evidence, other: Evidence) -> Parting:
    """Find the place at which two runs part.

    Raises UsageError if no step has a hash in both.
    """
    comparison = compare(one, other)
    step = comparison.first_different
    if step is None:
        return Parting(comparison=comparison)
    for place in sorted(one.tensors.keys() & other.tensors.keys(), key=_order):
        if place[0] != step:
            continue
        first, second = one.tensors[place], other.tensors[place]
        if first.hashes == second.hashes:
            continue
        return _parting(comparison, one, other, first, second)
    return Parting(comparison=comparison, conditions=_differences(one, other, (0, 0)))


def _parting(
    comparison: Comparison,
    one: Evidence,
    other: Evidence,
    first: TensorHashes,
    second: TensorHashes,
) -> Parting:
    pairs = list(zip(one.split(first), one.split(second), strict=True))
    differing = [number for number, (mine, theirs) in enumerate(pairs) if mine != theirs]
    order = {number: place for place, number in enumerate(first.order)}
    number = min(differing, key=lambda each: (order.get(each, len(order)), each))
    names = one.state if first.what == "state" else one.parameters
    ranks = first.rank, second.rank
    return Parting(
        comparison=comparison,
        what=first.what,
        virtual_rank=first.virtual_rank,
        tensor=names[number] if number < len(names) else f"number {number}",
        differing=len(differing),
        tensors=len(pairs),
        ranks=ranks,
        conditions=_differences(one, other, ranks),
    )


def _order(place: tuple[int, str, int]) -> tuple[int, int, int]:
    """Return the key by which places are in the order of a step's computation."""
    step, what, virtual_rank = place
    return step, list(_CAUSES).index(what), virtual_rank


def _differences(
    one: Evidence, other: Evidence, ranks: tuple[int, int]
) -> tuple[tuple[str, str, str], ...]:
    """Return the conditions that differ between a rank of one run and a rank of the other."""
    mine, theirs = one.conditions.get(ranks[0], {}), other.conditions.get(ranks[1], {})
    return tuple(differences(mine, theirs))

"""Choosing a plan by what each took when it was tried, and by what the model expects of it.

On a busy machine a trial tells plans apart only when they differ much; the model tells them apart
always, but knows nothing of processors. So both count alike: the plan with the smallest product.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from slackline.errors import UsageError
from slackline.plan.collective._choose import Choice
from slackline.units import format_bytes

__all__ = ["Timing", "fastest"]


_TIES = {"mesh": 1.2, "ring": 1.5}
"""How much longer a plan may seem to take and still be preferred. Trials on wires are
the noisier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long one plan took at two sizes."""

    name: str
    short_bytes: int
    short_ns: int
    large_bytes: int
    large_ns: int

    def at(self, nbytes: int) -> float:
        """Nanoseconds for `nbytes`: the straight line through both points, never below the short
        one.
        """
        slope = (self.large_ns - self.short_ns) / (self.large_bytes - self.short_bytes)
        return self.short_ns + max(0.0, slope) * max(0, nbytes - self.short_bytes)


def fastest(
    timings: Sequence[Timing],
    nbytes: int,
    expected_ns: Mapping[str, float] | None,
    *,
    preferred: Literal["mesh", "ring"] = "mesh",
) -> Choice:
    """The plan with the smallest product of measured and expected time.

    `expected_ns` is what the model says for each plan and `nbytes`; None where it was not asked,
    and what was measured decides alone. `preferred` is taken where it
    is not much slower than the best. On one host that is "mesh", which with the fewest copies
    suffers least when processors get busy; on wires "ring", where nobody is sent to by several at
    once.
    """
    if not timings:
        raise UsageError("a choice needs at least one timing, not 0")
    products = {
        t.name: t.at(nbytes) * (1.0 if expected_ns is None else expected_ns[t.name])
        for t in timings
    }
    limit = _TIES[preferred] * min(products.values())
    ranked = sorted(
        timings,
        key=lambda t: 0 if t.name == preferred and products[t.name] <= limit else products[t.name],
    )
    told = [f"{timing.name} {_microseconds(timing.at(nbytes))}" for timing in ranked]
    best, *others = told
    reason = f"{best} for {format_bytes(nbytes)}, as tried"
    if others:
        reason += "; " + ", ".join(others)
    return Choice(ranked[0].name, reason)


def _microseconds(nanoseconds: float) -> str:
    return f"{nanoseconds / 1000:.3g} us"

"""The choice of a plan by two times of each plan: a measured time and the cost model's time.

On a busy machine a measurement tells plans apart only when they differ much. The cost model always
tells plans apart, but knows nothing of the load on processors. Measured time and modelled time
therefore count alike: the plan with the smallest product of the two is chosen.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from slackline._lazy import record
from slackline.errors import UsageError
from slackline.plan.collective.choice._choose import Choice
from slackline.units import show_bytes, show_time

__all__ = ["Timing", "fastest"]


_TIES = {"mesh": 1.2, "ring": 1.5}
"""The factor by which a plan may be slower than the best and still be preferred.

The factor for rings is larger, since measurements over a wire are noisier.
"""


@record(frozen=True, slots=True, kw_only=True)
class Timing:
    """The measured time of one plan at two sizes."""

    name: str
    short_bytes: int
    short_ns: int
    large_bytes: int
    large_ns: int

    def at(self, nbytes: int) -> float:
        """Return the plan's time in nanoseconds for `nbytes`, interpolated between the two sizes.

        The interpolation is linear and goes on beyond the two sizes. The result is never less than
        the time measured at the smaller size.
        """
        slope = (self.large_ns - self.short_ns) / (self.large_bytes - self.short_bytes)
        return self.short_ns + max(0.0, slope) * max(0, nbytes - self.short_bytes)


def fastest(
    timings: Sequence[Timing],
    nbytes: int,
    expected_ns: Mapping[str, float] | None,
    *,
    preferred: Literal["mesh", "ring"] = "mesh",
    how: str = "as tried",
) -> Choice:
    """Choose the plan with the smallest product of measured time and modelled time.

    The measurement, at another size, tells how well a plan suits this network. The cost model tells
    how the plan's time grows with size.

    `expected_ns` has the cost model's time of each plan for `nbytes`; with None the measured times
    alone decide. The plan `preferred` is chosen where it is not much slower than the best. In
    shared memory that is "mesh", which copies least and so loses least when processors are busy.
    Elsewhere that is "ring", in which no rank receives from several ranks at once, or "mesh" in
    rank order, which a ring does not keep: of the plans that do, "mesh" sends least. `how` is the
    phrase that ends the first part of the reason. Raises UsageError for empty `timings`.
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
    told = [f"{timing.name} {show_time(timing.at(nbytes))}" for timing in ranked]
    best, *others = told
    reason = f"{best} for {show_bytes(nbytes)}, {how}"
    reason += _why_not_the_fastest(ranked, nbytes, products)
    if others:
        reason += "; " + ", ".join(others)
    return Choice(ranked[0].name, reason)


def _why_not_the_fastest(
    ranked: Sequence[Timing], nbytes: int, products: Mapping[str, float]
) -> str:
    """Return why the first plan is chosen although another one took less; "" if none did."""
    chosen = ranked[0]
    fastest = min(ranked, key=lambda timing: timing.at(nbytes))
    if fastest.at(nbytes) >= chosen.at(nbytes):
        return ""
    if products[chosen.name] > min(products.values()):
        return ", within the noise of the best plan and preferred here"
    return f", chosen by trial and cost model together ({fastest.name} won the trial alone)"

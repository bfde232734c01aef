"""The targets of the measurements; a target whose row is missing is skipped."""

from __future__ import annotations

from _harness.report import Target
from cases import (
    FASTER_THAN_1F1B,
    FASTER_THAN_GLOO,
    LARGE,
    OVER_FIXED,
    OVER_HEALTHY,
    OVER_SIMULATED,
    SMALL,
    TRACE_1F1B,
    TRACE_ZB,
    healthy,
    links_part,
    slow_all,
    slow_last,
)
from contestants import AUTO, AUTO_UNCAPPED, FIXED, GLOO_1F1B, OURS_1F1B, OURS_ZB
from results import Results

PREDICTABLE = (FIXED, AUTO)
"""The contestants whose ideal is the simulator's time: their order is the plan's or better."""


def targets(results: Results) -> list[Target]:
    """Return all targets."""
    last, every = slow_last(links_part(SMALL), SMALL), slow_all(SMALL, 60)
    well, slow = healthy(links_part(LARGE), LARGE), slow_last(links_part(LARGE), LARGE)
    found = [
        _most(
            f"{AUTO}, S=8: 60 ms on the last link over healthy",
            OVER_HEALTHY,
            results.ratio((slow, AUTO), (well, AUTO)),
        )
    ]
    for case in (last, every):
        for name in (AUTO, AUTO_UNCAPPED):
            found += [
                _least(
                    f"{case}: {OURS_1F1B} over {name}",
                    FASTER_THAN_1F1B,
                    results.ratio((case, OURS_1F1B), (case, name)),
                ),
                _least(
                    f"{case}: {GLOO_1F1B} over {name}",
                    FASTER_THAN_GLOO,
                    results.ratio((case, GLOO_1F1B), (case, name)),
                ),
            ]
    for shape in (SMALL, LARGE):
        case = healthy(links_part(shape), shape)
        ratio = results.ratio((case, AUTO), (case, FIXED))
        found.append(_most(f"{case}: {AUTO} over {FIXED}", OVER_FIXED, ratio))
    for case in (healthy(links_part(SMALL), SMALL), last, well, slow):
        found += [
            _most(
                f"{case}: {name} over simulated", OVER_SIMULATED, results.over_simulated(case, name)
            )
            for name in PREDICTABLE
        ]
    return [*found, *_replayed(results)]


def _replayed(results: Results) -> list[Target]:
    totals = results.totals
    return [
        _least(f"trace: {other} over {AUTO}", bound, _over(totals.get(other), totals.get(AUTO)))
        for other, bound in ((OURS_1F1B, TRACE_1F1B), (OURS_ZB, TRACE_ZB))
    ]


def _over(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else round(above / below, 3)


def _most(name: str, target: float, measured: float | None) -> Target:
    return Target(name=name, target=target, measured=measured, bound="at most")


def _least(name: str, target: float, measured: float | None) -> Target:
    return Target(name=name, target=target, measured=measured)

"""The rate of a run's network, found from the measured times of its reductions."""

from collections.abc import Callable
from dataclasses import replace

from slackline.errors import UsageError
from slackline.predict._model import busy_ns, replay
from slackline.predict._run import Link, Run
from slackline.predict._setting import setting_of
from slackline.units import show_rate, show_time

__all__ = ["calibrate"]

_ROUNDS = 24
"""The largest number of rates that are tried."""
_EXACT = 1e-4
"""The relative difference from the measured time at which the search ends."""
_WIDTH = 16.0
"""The ratio of the bounds of the search to an estimate from bytes and time."""
_MOST_STEPS = 10
"""The number of measured steps that are simulated again for each candidate."""


def calibrate(run: Run) -> Run:
    """Return the run with the rate at which its reductions take as long as they were measured.

    The latency of the run's link stays as it is, and no rate above the nominal one is tried. Each
    candidate is a simulation of up to ten measured steps with their own computations; the compared
    time is that in which a rank had a reduction under way. The duration of a step is not used, so
    that it shows the model's error.

    Raises UsageError if the reductions take much longer than their bytes explain, or no time.
    """
    first = (len(run.steps) - min(_MOST_STEPS, len(run.steps))) // 2
    chosen = run.steps[first : first + _MOST_STEPS]
    wanted_ns = sum(step.busy_ns for step in chosen) / len(chosen)
    if wanted_ns <= 0:
        raise UsageError(f"{run.name}: no reduction took any time, so no network can be calibrated")
    setting = setting_of(run)

    def simulated_ns(rate_bps: int) -> float:
        trained = replay(
            setting, run, lambda rank, step: chosen[step].ranks[rank], len(chosen), rate_bps
        )
        return busy_ns(trained)

    estimate_bps = 8e9 * sum(group.nbytes for group in run.groups) / wanted_ns
    low, high = estimate_bps / _WIDTH, estimate_bps * _WIDTH * run.ranks
    if run.nominal_bps is not None:
        high = min(high, float(run.nominal_bps))
        low = min(low, high)
    if simulated_ns(max(1, round(low))) < wanted_ns:
        raise UsageError(
            f"{run.name}: its reductions take {show_time(wanted_ns)} of a step, longer than on "
            f"NICs of {show_rate(low)}; do all ranks train the same steps?"
        )
    rate_bps = _search(lambda rate_bps: simulated_ns(rate_bps) / wanted_ns - 1.0, low, high)
    link = Link(rate_bps=rate_bps, one_way_ns=run.link.one_way_ns)
    return replace(run, link=link)


def _search(excess: Callable[[int], float], low: float, high: float) -> int:
    """Return the rate between two bounds at which `excess` is 0; `high` if it is positive there.

    `excess` falls with the rate, and is nearly linear in the time of a byte, 1 / rate. The method
    is false position with the Illinois weights (Dowell and Jarratt, 1971).
    """
    left, right = 1 / high, 1 / low
    below = excess(max(1, round(high)))
    above = excess(max(1, round(low)))
    if below >= 0:
        return max(1, round(high))
    side = 0
    middle = right
    for _ in range(_ROUNDS):
        middle = (left * above - right * below) / (above - below)
        found = excess(max(1, round(1 / middle)))
        if abs(found) < _EXACT:
            break
        if found > 0:
            right, above = middle, found
            below *= 0.5 if side == 1 else 1.0
            side = 1
        else:
            left, below = middle, found
            above *= 0.5 if side == -1 else 1.0
            side = -1
    return max(1, round(1 / middle))

"""The test whether a model foretells a link's delay better than simple forecasts do.

The test evaluates a rolling origin: at each reading, every model that was fitted to the readings so
far forecasts a later delay. The error is known when that delay has been measured. Two simple
forecasts are made for comparison: the latest delay (persistence), and the median of the history.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.stats import binomtest

from slackline.pipeline.forecast._history import Array, Reading
from slackline.pipeline.forecast._models import MODELS
from slackline.pipeline.forecast._options import ForecastOptions

__all__ = ["SIMPLE", "Issued", "LinkHistory", "skilled"]

SIMPLE = ("persistence", "median")
"""The simple forecasts, whose values precede those of the models."""
_NAMES = (*SIMPLE, *MODELS)
_MISSES = 2
"""The number of consecutive large errors after which a model is not used."""
_LARGE = 0.25
"""The fraction of the history's swing from which an error is large."""


@dataclass(frozen=True, slots=True)
class Issued:
    """The forecasts of all methods for one moment."""

    due_ns: int
    """The moment that the forecasts are for."""
    values_ms: tuple[float, ...]
    """The forecasts: the simple ones, then those of the models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkHistory:
    """The state of a link's forecasts: readings, forecasts that are not due, and past errors."""

    readings: tuple[Reading, ...] = ()
    issued: tuple[Issued, ...] = ()
    """The forecasts whose moment has not come yet."""
    errors_ms: tuple[tuple[float, ...], ...] = ()
    """Measured delay minus forecast, for each method, of the latest forecasts that came due."""
    scored: int = 0
    """The number of all forecasts that came due."""


def skilled(state: LinkHistory, swing_ms: float, options: ForecastOptions) -> tuple[str, str]:
    """Return the name of the model to use and an empty text, or no name and the reason.

    `swing_ms` is the difference between the longest and the shortest delay of the history.
    """
    if not state.errors_ms:
        return "", "no forecast has come due"
    errors = np.array(state.errors_ms)
    sizes = np.abs(errors)
    totals = sizes.sum(axis=0)
    bound = options.most_error * totals[: len(SIMPLE)].min()
    order = len(SIMPLE) + np.argsort(totals[len(SIMPLE) :], kind="stable")
    able = [int(place) for place in order if totals[place] <= bound]
    if not able:
        return "", "no model of the past is better than the latest delay"
    proven = [each for each in able if _significant(sizes, each, state.scored, options)]
    if not proven:
        return "", "too few changes of the delay were foretold"
    large = max(_LARGE * swing_ms, options.least_change_ms)
    best = proven[0]
    if sizes[-_MISSES:, best].min() > large:
        return "", f"the latest forecasts of the model {_NAMES[best]} were wrong"
    return _NAMES[best], ""


def _significant(sizes: Array, place: int, scored: int, options: ForecastOptions) -> bool:
    """Return whether the sign test finds a model better than persistence.

    The test compares sums of errors over blocks of consecutive forecasts. Blocks in which both are
    nearly equal do not count.
    """
    blocks = (scored - len(sizes) + np.arange(len(sizes))) // options.block
    gains = np.bincount(blocks - blocks[0], weights=sizes[:, 0] - sizes[:, place])
    won = int((gains > options.least_change_ms).sum())
    lost = int((gains < -options.least_change_ms).sum())
    return won > lost and _chance(won, won + lost) <= options.doubt


@lru_cache(maxsize=256)
def _chance(won: int, blocks: int) -> float:
    """Return the chance to win at least `won` of some blocks where each is won by chance of 1/2."""
    return float(binomtest(won, blocks, alternative="greater").pvalue)

"""Forecasts of one link's delay: readings in, forecasts out."""

from dataclasses import dataclass, replace

import numpy as np

from slackline.errors import UsageError
from slackline.pipeline.forecast._history import History, Reading
from slackline.pipeline.forecast._models import MODELS, Model
from slackline.pipeline.forecast._options import ForecastOptions
from slackline.pipeline.forecast._skill import SIMPLE, Issued, LinkHistory, skilled
from slackline.units import count, show_time

__all__ = ["Forecast", "changes", "foresee", "observe"]

_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_LEAST = 8
"""The least number of readings for a forecast."""
_PLACES = 5
"""The number of moments, spread evenly over a time span, of which the longest delay is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The forecast of a link's longest delay within a time span."""

    delay_ns: int
    """The expected delay; without a model, the latest delay."""
    low_ns: int
    """The lower end of the interval in which the delay is expected to lie."""
    high_ns: int
    """The upper end of the interval."""
    model: str
    """The model: "periodic", "drift" or "bursts"; empty if nothing can be foretold."""
    reason: str
    """The forecast in words, or the reason why there is none, as a sentence."""


def observe(reading: Reading, state: LinkHistory, options: ForecastOptions) -> LinkHistory:
    """Return the state after a further reading, with the errors of the forecasts that came due.

    Raises UsageError for a reading that is no later than the one before, or has a delay below 0.
    """
    before = state.readings[-1] if state.readings else None
    if before is not None and reading.time_ns <= before.time_ns:
        raise UsageError(
            f"readings must be in order of time: {reading.time_ns} ns follows {before.time_ns} ns"
        )
    if reading.delay_ns < 0:
        raise UsageError(f"delay_ns must be at least 0, not {reading.delay_ns}")
    due = [each for each in state.issued if each.due_ns <= reading.time_ns]
    errors = []
    for each in due:
        nearest = reading
        if before is not None and each.due_ns - before.time_ns < reading.time_ns - each.due_ns:
            nearest = before
        actual = nearest.delay_ns / _NS_PER_MS
        errors.append(tuple(actual - value for value in each.values_ms))
    return replace(
        state,
        readings=(*state.readings, reading)[-options.memory :],
        issued=state.issued[len(due) :],
        errors_ms=(*state.errors_ms, *errors)[-options.judged :],
        scored=state.scored + len(due),
    )


def changes(state: LinkHistory, options: ForecastOptions) -> bool:
    """Return whether a link's delay has changed enough for models to be fitted."""
    enough = len(state.readings) >= _LEAST
    return enough and History.of(state.readings).swing_ms >= options.least_change_ms


def foresee(
    start_ns: int, end_ns: int, state: LinkHistory, options: ForecastOptions
) -> tuple[LinkHistory, Forecast]:
    """Forecast a link's longest delay from `start_ns` to `end_ns`, by the clock of the readings.

    Returns the new state, which remembers the forecasts of all models for `start_ns`, and the
    forecast of the best model. Raises UsageError without a reading, and for a time span that is not
    after the latest reading or ends before it starts.
    """
    if not state.readings:
        raise UsageError("a forecast needs a reading")
    latest = state.readings[-1]
    if not latest.time_ns < start_ns <= end_ns:
        raise UsageError(
            f"the time span from {start_ns} ns to {end_ns} ns must lie after the latest reading, "
            f"at {latest.time_ns} ns"
        )
    if len(state.readings) < _LEAST:
        return state, _none(latest, f"there are only {count(len(state.readings), 'reading')}")
    history = History.of(state.readings)
    if history.swing_ms < options.least_change_ms:
        return state, _none(
            latest, f"the delay changed by {show_time(1e6 * history.swing_ms)} only"
        )
    models = {name: fit(history) for name, fit in MODELS.items()}
    span = np.linspace(start_ns - latest.time_ns, end_ns - latest.time_ns, _PLACES) / _NS_PER_S
    persistent = latest.delay_ns / _NS_PER_MS
    values = [persistent, float(np.median(history.delays_ms))]
    values += [persistent if each is None else float(each.at(span)[0]) for each in models.values()]
    issued = state.issued
    if not issued or issued[-1].due_ns <= start_ns:
        issued = (*issued, Issued(start_ns, tuple(values)))
    name, reason = skilled(state, history.swing_ms, options)
    state = replace(state, issued=issued)
    model = models.get(name)
    if model is None:
        return state, _none(latest, reason or f"the model {name} does not fit now")
    return state, _forecast(model, name, span, state, options)


def _forecast(
    model: Model, name: str, span: np.ndarray, state: LinkHistory, options: ForecastOptions
) -> Forecast:
    """Return a model's forecast, with an interval from the errors of its past forecasts."""
    delay = float(model.at(span).max())
    place = len(SIMPLE) + list(MODELS).index(name)
    errors = np.array([each[place] for each in state.errors_ms])
    low, high = np.quantile(errors, ((1 - options.coverage) / 2, (1 + options.coverage) / 2))
    return Forecast(
        delay_ns=round(delay * _NS_PER_MS),
        low_ns=round(max(delay + min(low, 0), 0) * _NS_PER_MS),
        high_ns=round((delay + max(high, 0)) * _NS_PER_MS),
        model=name,
        reason=model.sentence(),
    )


def _none(latest: Reading, why: str) -> Forecast:
    return Forecast(
        delay_ns=latest.delay_ns,
        low_ns=latest.delay_ns,
        high_ns=latest.delay_ns,
        model="",
        reason=f"Nothing can be foretold: {why}.",
    )

"""Predicted step times of a run under changes, with a reason and with warnings."""

from collections.abc import Sequence
from dataclasses import dataclass

from slackline.errors import LinkError, PeerError, TimeoutError, UsageError
from slackline.predict._changes import Change, Compute, Nics, Rate
from slackline.predict._model import Outcome, simulate
from slackline.predict._run import Run
from slackline.predict._setting import Setting, apply, setting_of

__all__ = ["DEFAULT_SAMPLES", "Prediction", "explain", "predict"]

DEFAULT_SAMPLES = 64
"""The number of steps that a prediction simulates."""

_HIDDEN = 0.02
"""The share of exposed time below which communication counts as hidden."""
_FULL = 0.75
"""The share of a step from which on the wire counts as the limit."""
_ALIKE = 0.02
"""The relative difference below which two step times count as equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The predicted duration of a step, and the reason for it."""

    p50_ns: int
    """The median."""
    p95_ns: int
    """The duration that 95 % of the steps do not exceed."""
    exposed_ns: int
    """The mean time of a step for which a rank waits for gradients."""
    reason: str
    """The limit of the step in a sentence, and the effect of the changes on it."""
    warnings: tuple[str, ...]
    """Phrases for each value that is far from those that were measured."""


def predict(
    run: Run, changes: Sequence[Change] = (), samples: int = DEFAULT_SAMPLES, seed: int = 0
) -> Prediction:
    """Predict the step time of a run with changes; equal arguments give equal results.

    `samples` is the number of simulated steps. Without changes the prediction is that of the run as
    it was measured, and its difference from the measured times is the error of the model.

    Raises UsageError for a change that the run cannot have, and where the changed run cannot end
    because of a fault.
    """
    if samples < 1:
        raise UsageError(f"samples must be a positive integer, not {samples}")
    setting, warnings = apply(run, changes)
    if not changes:
        outcome = simulate(run, setting, samples=samples, seed=seed)
        return _prediction(outcome, explain(setting, outcome), warnings)
    was = setting_of(run)
    before = simulate(run, was, samples=samples, seed=seed)
    try:
        after = simulate(run, setting, samples=samples, seed=seed)
    except (LinkError, PeerError, TimeoutError) as error:
        said = "; ".join(map(str, changes))
        raise UsageError(f"with {said!r} the run cannot end: {error}") from None
    reason = f"{explain(was, before)} {_effect(before, after, setting, changes)}"
    return _prediction(after, reason, warnings)


def explain(setting: Setting, outcome: Outcome) -> str:
    """Return a sentence on the limit of the simulated steps."""
    wire, exposed = outcome.wire_share, outcome.exposed_share
    carrier = "Memory between ranks" if setting.hosts == 1 else "The wire"
    if exposed < _HIDDEN:
        return f"Computation hides the communication: ranks wait {exposed:.0%} of the step."
    if setting.hosts > 1 and wire >= _FULL:
        return f"{carrier} is busy {wire:.0%} of the step."
    if setting.hosts == 1:
        return f"Ranks wait {exposed:.0%} of the step for messages through memory."
    return (
        f"{carrier} is busy only {wire:.0%} of the step, yet ranks wait {exposed:.0%} of it: "
        "latency and waits between messages limit the step."
    )


def _effect(before: Outcome, after: Outcome, setting: Setting, changes: Sequence[Change]) -> str:
    """Return a sentence on the difference that the changes make."""
    ratio = after.p50_ns / before.p50_ns
    what = "; ".join(map(str, changes))
    if abs(ratio - 1) < _ALIKE:
        return f'"{what}" changes the step by less than {_ALIKE:.0%}.'
    how = f"longer by {ratio - 1:.0%}" if ratio > 1 else f"shorter by {1 - ratio:.0%}"
    waits = f"{_milliseconds(before.exposed_ns)} to {_milliseconds(after.exposed_ns)}"
    sentence = f'With "{what}" the step is {how}: the waits for gradients go from {waits}'
    if any(isinstance(change, Nics | Rate) for change in changes):
        sentence += f", and the wire is busy {after.wire_share:.0%} of the step"
    elif any(isinstance(change, Compute) for change in changes):
        computing = f"{_milliseconds(before.computing_ns)} to {_milliseconds(after.computing_ns)}"
        sentence += f", and the computation from {computing}"
    return sentence + "."


def _milliseconds(time_ns: int) -> str:
    return f"{time_ns / 1e6:.3g} ms"


def _prediction(outcome: Outcome, reason: str, warnings: tuple[str, ...]) -> Prediction:
    return Prediction(
        p50_ns=outcome.p50_ns,
        p95_ns=outcome.p95_ns,
        exposed_ns=outcome.exposed_ns,
        reason=reason,
        warnings=warnings,
    )

"""Predicted step times of a run under changes, with a reason and with warnings."""

from collections.abc import Sequence
from dataclasses import dataclass

from slackline.errors import LinkError, PeerError, TimeoutError, UsageError
from slackline.predict._changes import Change, Compute, FaultChange, Nics, Rate
from slackline.predict._job import Job
from slackline.predict._model import Outcome, simulate
from slackline.predict._pipeline import PipelineRun
from slackline.predict._pipeline_model import (
    PipelineOutcome,
    apply_to_pipeline,
    simulate_pipeline,
)
from slackline.predict._run import Run
from slackline.predict._setting import Setting, apply, setting_of
from slackline.units import show_time

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
    """The mean time of a step for which a rank waits: for gradients, or for messages."""
    reason: str
    """The limit of the step in a sentence, and the effect of the changes on it."""
    warnings: tuple[str, ...]
    """Phrases for each value that is far from those that were measured."""


def predict(
    run: Run | PipelineRun,
    changes: Sequence[Change] = (),
    samples: int = DEFAULT_SAMPLES,
    seed: int = 0,
) -> Prediction:
    """Predict the step time of a run with changes; equal arguments give equal results.

    `samples` is the number of simulated steps. Without changes the prediction is that of the run as
    it was measured, and its difference from the measured times is the error of the model.

    Raises UsageError for a change that the run cannot have, and where the changed run cannot end
    because of a fault.
    """
    if samples < 1:
        raise UsageError(f"samples must be a positive integer, not {samples}")
    _check_once(changes)
    if isinstance(run, PipelineRun):
        return _predict_pipeline(run, changes, samples, seed)
    was = setting_of(run)
    before = simulate(run, was, samples=samples, seed=seed)
    if not changes:
        return _prediction(before, explain(was, before), _notes(run, was.ranks))
    setting, said = apply(run, changes)
    try:
        after = simulate(run, setting, samples=samples, seed=seed)
    except (LinkError, PeerError, TimeoutError) as error:
        what = "; ".join(map(str, changes))
        raise UsageError(f"with {what!r} the run cannot end: {error}") from None
    reason = f"{explain(was, before)} {_effect(before, after, changes)}"
    return _prediction(after, reason, (*_notes(run, setting.ranks), *said))


def _check_once(changes: Sequence[Change]) -> None:
    kinds: set[type[Change]] = set()
    for change in changes:
        if type(change) in kinds and not isinstance(change, FaultChange):
            first = str(change).split()[0]
            raise UsageError(f"{first!r} is changed twice, the second time by {str(change)!r}")
        kinds.add(type(change))


def _notes(run: Run, ranks: int) -> tuple[str, ...]:
    """Return the warnings that concern every change of a run that leaves it `ranks` ranks."""
    notes = (*run.notes, *_crowded(ranks, run.job))
    if len(run.steps) > 1:
        return notes
    return (*notes, "one step was measured: the spread of computations is not known")


def _crowded(ranks: int, job: Job | None) -> tuple[str, ...]:
    """Return the warning that the ranks of a job share cores, if they do."""
    if job is None or job.cores is None or ranks <= job.cores:
        return ()
    cores = f"{job.cores} core{'s' * (job.cores > 1)}"
    return (
        f"{ranks} ranks share {cores}, while the model gives every rank a core of its own; "
        "predictions for such runs have missed by 18 to 38 %",
    )


def _predict_pipeline(
    run: PipelineRun, changes: Sequence[Change], samples: int, seed: int
) -> Prediction:
    was, _ = apply_to_pipeline(run, ())
    before = simulate_pipeline(run, was, samples=samples, seed=seed)
    reason = f"Ranks compute nothing for {before.idle_share:.0%} of a step by {run.plan.name}."
    crowded = _crowded(len(run.plan.programs), run.job)
    if not changes:
        return _of_pipeline(run, before, reason, crowded)
    setting, warnings = apply_to_pipeline(run, changes)
    after = simulate_pipeline(run, setting, samples=samples, seed=seed)
    what = "; ".join(map(str, changes))
    ratio = _percentile(after.step_ns, 0.5) / _percentile(before.step_ns, 0.5)
    reason += (
        f' With "{what}" the step is {_by(ratio)}, and ranks compute nothing for '
        f"{after.idle_share:.0%} of it."
    )
    return _of_pipeline(run, after, reason, (*crowded, *warnings))


def _of_pipeline(
    run: PipelineRun, outcome: PipelineOutcome, reason: str, warnings: tuple[str, ...]
) -> Prediction:
    step_ns = outcome.step_ns
    return Prediction(
        p50_ns=_percentile(step_ns, 0.5),
        p95_ns=_percentile(step_ns, 0.95),
        exposed_ns=round(outcome.idle_share * sum(step_ns) / len(step_ns)),
        reason=reason,
        warnings=warnings,
    )


def _percentile(ordered: Sequence[int], share: float) -> int:
    return ordered[round(share * (len(ordered) - 1))]


def _by(ratio: float) -> str:
    """Return a phrase for the relative duration of a step."""
    if abs(ratio - 1) < _ALIKE:
        return f"as long within {_ALIKE:.0%}"
    return f"longer by {ratio - 1:.0%}" if ratio > 1 else f"shorter by {1 - ratio:.0%}"


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


def _effect(before: Outcome, after: Outcome, changes: Sequence[Change]) -> str:
    """Return a sentence on the difference that the changes make."""
    ratio = after.p50_ns / before.p50_ns
    what = "; ".join(map(str, changes))
    if abs(ratio - 1) < _ALIKE:
        return f'"{what}" changes the step by less than {_ALIKE:.0%}.'
    waits = f"{show_time(before.exposed_ns)} to {show_time(after.exposed_ns)}"
    sentence = f'With "{what}" the step is {_by(ratio)}: the waits for gradients go from {waits}'
    if any(isinstance(change, Nics | Rate) for change in changes):
        sentence += f", and the wire is busy {after.wire_share:.0%} of the step"
    elif any(isinstance(change, Compute) for change in changes):
        computing = f"{show_time(before.computing_ns)} to {show_time(after.computing_ns)}"
        sentence += f", and the computation from {computing}"
    return sentence + "."


def _prediction(outcome: Outcome, reason: str, warnings: tuple[str, ...]) -> Prediction:
    return Prediction(
        p50_ns=outcome.p50_ns,
        p95_ns=outcome.p95_ns,
        exposed_ns=outcome.exposed_ns,
        reason=reason,
        warnings=warnings,
    )

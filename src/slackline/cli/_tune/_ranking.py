"""The order in which candidates are tried: by simulation of the script's first trial.

Candidates with a clear simulated gain come first, then candidates that the simulator has no model
for, and last the other candidates, the fastest of them first.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from slackline import predict
from slackline.cli._tune._candidates import Candidate
from slackline.errors import UsageError
from slackline.units import show_number

__all__ = ["by_ratio", "ranked"]

_CLEAR = 0.98
"""The largest ratio of simulated steps that counts as a clear gain: smaller differences are within
the simulator's error."""

_CHANGES = {"plan": "plan {}", "group_bytes": "bucket {}", "schedule": "schedule {}"}
"""The settings that slackline.predict can simulate, each with the text of its change."""


def ranked(
    found: Sequence[Candidate], directory: Path, say: Callable[[str], None]
) -> list[Candidate]:
    """Return the candidates in the order in which they are to be tried.

    `directory` has the telemetry of the first trial, and its job. `say` receives a line with the
    simulated results, and with the reason if there are none.
    """
    try:
        pipeline = predict.has_pipeline(directory)
        run = predict.load_pipeline(directory) if pipeline else predict.load(directory)
        usual_ns = predict.predict(run).p50_ns
    except UsageError as error:
        say(f"no candidate is simulated: {error}")
        return list(found)
    ratios: list[float | None] = []
    told: list[str] = []
    for each in found:
        ratio = None
        try:
            changes = [
                predict.parse_change(_CHANGES[name].format(value))
                for name, value in each.settings.items()
                if name in _CHANGES
            ]
            if len(changes) == len(each.settings):
                ratio = predict.predict(run, changes).p50_ns / usual_ns
                told.append(f"{each} {show_number(ratio)}")
        except UsageError as error:
            say(f"{each} is not simulated: {error}")
        ratios.append(ratio)
    if told:
        say(f"simulated step, relative to the step with the defaults: {'; '.join(told)}")
    return by_ratio(found, ratios)


def by_ratio(found: Sequence[Candidate], ratios: Sequence[float | None]) -> list[Candidate]:
    """Sort candidates by the ratio of their simulated step to the defaults'; None is unknown.

    Unknown ratios stay in their order, between the clear gains and the other ratios.
    """

    def place(number: int) -> tuple[int, float]:
        ratio = ratios[number]
        if ratio is None:
            return 1, 0.0
        return (0 if ratio <= _CLEAR else 2), ratio

    return [found[number] for number in sorted(range(len(found)), key=place)]

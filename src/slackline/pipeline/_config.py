"""The configuration of a schedule beyond the parameters of torch's schedules."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from slackline.env import DELEGATIONS
from slackline.errors import UsageError
from slackline.pipeline._policy import POLICIES
from slackline.pipeline._record import StepRecord
from slackline.units import show_time

__all__ = ["ScheduleConfig"]

_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """Options of a pipeline schedule that are seldom changed; a wrong value raises UsageError.

    All ranks must have equal values, except for `split_backward`, `delegation`, `telemetry`,
    `keep_records` and `on_step`.
    """

    policy: str | None = None
    """How strictly a plan's order is kept: "fixed", "ready", "adaptra" or "auto".

    None chooses "auto" for the schedule "auto", "adaptra" for "adaptra", and "ready" for all other
    schedules.
    """
    full_backward: bool = False
    """Whether "gpipe", "1f1b" and "interleaved" run each backward in one piece (BW)."""
    split_backward: bool | None = None
    """Whether the backward for the inputs (B) is separate from the backward for the weights (W).

    None separates B and W on stages on which no value is then computed twice. If all ranks have
    None, the schedule "auto" also tries plans with backwards in one piece.
    """
    delegation: str | None = None
    """Whether the engine ("always") or the computing thread ("never") sends messages.

    "auto" chooses for each link the cheaper sender, by measurement. None reads
    SLACKLINE_DELEGATION; without that variable the choice is "auto".
    """
    stage_times: Sequence[tuple[timedelta, timedelta, timedelta]] | None = None
    """The expected times of a forward, a B and a W on each stage, for the first plan.

    None expects equal times. Measurements replace the values after three steps.
    """
    link_delays: Sequence[timedelta] | None = None
    """The expected delay of each link, the same in both directions, for the first plan.

    Link i joins the stages i and i + 1. The delays need `stage_times` as a scale. None expects no
    delays.
    """
    forecast: bool = False
    """Whether new plans are made before the delays of links that come, where they can be foretold.

    Forecasts need a policy that makes new plans ("auto" or "adaptra"), and the extra
    `forecast`. Delays that cannot be foretold are reacted to, as without the option.
    """
    plan_effort: float = 1.0
    """A factor by which the search for plans of the schedule "auto" takes longer."""
    telemetry: Path | None = None
    """The directory for this rank's step records; None reads SLACKLINE_TELEMETRY."""
    keep_records: int = 64
    """The number of steps, the latest ones, whose records `Schedule.records` holds."""
    on_step: Callable[[StepRecord], None] | None = None
    """A function that the computing thread calls with the record of each training step, at the end
    of the step.

    An exception of the function is an error in the step, which ends the group on every rank.
    """

    def __post_init__(self) -> None:
        if self.policy is not None and self.policy not in POLICIES:
            raise UsageError(
                f'there is no policy "{self.policy}"; policies are {", ".join(POLICIES)}'
            )
        if self.full_backward and self.split_backward:
            raise UsageError(
                "full_backward=True runs backwards in one piece; split_backward must not be True"
            )
        if self.delegation is not None and self.delegation not in DELEGATIONS:
            raise UsageError(
                f'delegation must be one of {", ".join(DELEGATIONS)}, not "{self.delegation}"'
            )
        for stage, times in enumerate(self.stage_times or ()):
            for name, value, least in zip("FBW", times, (1, 1, 0), strict=True):
                if value // _MICROSECOND < least:
                    raise UsageError(
                        f"stage_times: {name} of stage {stage} must be at least "
                        f"{least} us, not {show_time(1000 * (value / _MICROSECOND))}"
                    )
        for link, delay in enumerate(self.link_delays or ()):
            if delay < timedelta():
                raise UsageError(
                    f"link_delays: the delay of link {link} must be at least 0 us, "
                    f"not {show_time(1000 * (delay / _MICROSECOND))}"
                )
        if self.link_delays is not None and self.stage_times is None:
            raise UsageError("link_delays need stage_times: only their ratio to the times matters")
        if not self.plan_effort > 0:
            raise UsageError(f"plan_effort must be positive, not {self.plan_effort:g}")
        if self.keep_records < 1:
            raise UsageError(f"keep_records must be a positive integer, not {self.keep_records}")

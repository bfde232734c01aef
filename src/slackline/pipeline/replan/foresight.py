"""The forecasts of all links of a pipeline, for the steps that a new plan would serve first.

    measured            now          adopted
    step s - 2  step s - 1  | step s ... step s + lead
                            |   a plan that is requested now takes `lead` steps

The lead is the number of steps between the request and the adoption of the latest new plan. A plan
is made for the longest delay that is expected from the middle of the step of its adoption to the
middle of the next step, so that slack is there before the delay comes. The slack is given back when
no delay is expected in this time.

The cost of a step is bounded: models are fitted for one link in a step, in turn, among the links
whose delays have changed, and at most once in a fifth of a second. A forecast then covers the steps
until the next turn of its link too.
"""

import math
from collections import deque
from collections.abc import Callable
from statistics import median

from slackline.pipeline.forecast import (
    ForecastOptions,
    LinkHistory,
    Reading,
    changes,
    foresee,
    observe,
)
from slackline.pipeline.replan._decision import Expected, StepMetrics

__all__ = ["Foresight"]

LEAST_LEAD = 3
"""The number of steps between the request and the adoption of a plan that is found at once."""
_MOST_LEAD = 50
_STEPS = 5
"""The number of the latest steps of which the median duration is taken."""
_PAUSE_NS = 200_000_000
"""The least time between two fits of models, which take about a millisecond."""


class Foresight:
    """The forecasts of all links of a pipeline, on the rank that decides about plans.

    Steps begin and end by one clock, in nanoseconds. Only one thread may use the object.
    """

    def __init__(
        self,
        links: int,
        report: Callable[[str, str], None],
        options: ForecastOptions | None = None,
    ) -> None:
        """Create the forecasts of `links` links, without a reading.

        `report(choice, reason)` is called when a model is taken for a link or given up.
        """
        self._options = ForecastOptions() if options is None else options
        self._report = report
        self._histories = [LinkHistory() for _ in range(links)]
        self._models = [""] * links
        self._expected: dict[int, Expected] = {}
        self._calm = deque(range(links))
        """The links whose delays have not changed, in the order of their turns."""
        self._changing: deque[int] = deque()
        """The links for which models are fitted, in the order of their turns."""
        self._fitted_ns: int | None = None
        self._middles: dict[int, int] = {}
        self._durations: deque[int] = deque(maxlen=_STEPS)
        self._ended_ns: int | None = None
        self._lead = LEAST_LEAD
        self._requested: int | None = None

    def step_ended(self, step: int, begin_ns: int, end_ns: int) -> None:
        """Record the times of a step, whose delays `expected` gets later."""
        self._middles[step] = (begin_ns + end_ns) // 2
        # A script also works between steps, so durations are counted from end to end.
        self._durations.append(end_ns - (begin_ns if self._ended_ns is None else self._ended_ns))
        self._ended_ns = end_ns

    def requested(self, step: int) -> None:
        """Record that the search for a plan was started at the beginning of a step."""
        self._requested = step

    def adopted(self, step: int) -> None:
        """Record that the requested plan was adopted at the beginning of a step."""
        if self._requested is not None:
            self._lead = min(max(step - self._requested, LEAST_LEAD), _MOST_LEAD)
            self._requested = None

    def expected(self, measured: StepMetrics, now_ns: int) -> dict[int, Expected]:
        """Add the delays of a step, and return the expected delays of the foretold links.

        `now_ns` is the beginning of the step in which a plan would be requested.
        """
        middle_ns = self._middles.pop(measured.step)
        for link, (down, up) in enumerate(zip(measured.down, measured.up, strict=True)):
            reading = Reading(middle_ns, (down + up) // 2)
            self._histories[link] = observe(reading, self._histories[link], self._options)
        if self._fitted_ns is None or now_ns - self._fitted_ns >= _PAUSE_NS:
            self._fitted_ns = now_ns
            for link in [ring.popleft() for ring in (self._calm, self._changing) if ring]:
                self._fit(link, now_ns)
        return dict(self._expected)

    def _fit(self, link: int, now_ns: int) -> None:
        """Renew the forecast of a link, whose turn it is."""
        if not changes(self._histories[link], self._options):
            self._calm.append(link)
            self._take(link, "", "Nothing can be foretold: the delay no longer changes.")
            return
        self._changing.append(link)
        step_ns = median(self._durations)
        turns = max(len(self._changing), math.ceil(_PAUSE_NS / step_ns))
        start_ns = round(now_ns + (self._lead + 0.5) * step_ns)
        self._histories[link], forecast = foresee(
            start_ns, round(start_ns + turns * step_ns), self._histories[link], self._options
        )
        self._take(link, forecast.model, forecast.reason)
        if forecast.model:
            self._expected[link] = Expected(delay_ns=forecast.delay_ns, reason=forecast.reason)

    def _take(self, link: int, model: str, reason: str) -> None:
        """Report a change of a link's model, and forget the forecast of the former model."""
        self._expected.pop(link, None)
        if model != self._models[link]:
            self._models[link] = model
            self._report(f"link {link}-{link + 1}: {model or 'no forecast'}", reason)

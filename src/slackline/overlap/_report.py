"""Where the summaries of steps go: the last one, a callback, a file, the run's sum."""

import atexit
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from slackline.errors import SlacklineError
from slackline.overlap._exchange import Exchange
from slackline.telemetry import RunSummary, StepSummary, Totals, Writer

__all__ = ["Report"]


class Report:
    """One rank's summaries. The file gets the run's sum when it is closed, or at exit."""

    def __init__(
        self,
        exchange: Exchange,
        directory: Path | None,
        on_step: Callable[[StepSummary], None] | None,
        *,
        rank: int,
    ) -> None:
        """`rank` in the job: the exchange may be that of some of its ranks only."""
        self.last_step: StepSummary | None = None
        self._exchange = exchange
        self._on_step = on_step
        self._totals = Totals(rank)
        self._rails: tuple[str, ...] = ()
        self._writer = None if directory is None else Writer(directory, rank)
        if self._writer is not None:
            atexit.register(self.close)

    def take(self, summary: StepSummary) -> None:
        """Take the summary of a step that is done."""
        self.last_step = summary
        self._totals.add(summary)
        if self._writer is not None:
            self._writer.write(summary)
        if self._on_step is not None:
            self._on_step(summary)

    def run_summary(self) -> RunSummary:
        """Return the sum of all steps so far."""
        with suppress(SlacklineError):  # the group may have ended: what was known still holds
            self._rails = self._exchange.rails()
        return self._totals.run(self._rails)

    def close(self) -> None:
        """Write the run's sum, where there is a file; a second call changes nothing."""
        if self._writer is not None:
            atexit.unregister(self.close)
            self._writer.write(self.run_summary())
            self._writer.close()
            self._writer = None

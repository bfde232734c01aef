"""The delivery of step summaries: to a callback, a telemetry file, the log, and a run's totals."""

import atexit
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from slackline.backend import plain_steps
from slackline.env import Environment
from slackline.errors import SlacklineError
from slackline.overlap._detail_budget import DetailBudget
from slackline.overlap._recorder import Recorder
from slackline.overlap._timeline import Timeline
from slackline.overlap.exchange import Exchange
from slackline.records import (
    DEFAULT_LIMIT_BYTES,
    Decision,
    Promise,
    RunSummary,
    Setting,
    StepSummary,
    Totals,
    Writer,
    Written,
    log_of,
    open_core_times,
)

__all__ = ["Report"]


class Report:
    """The step summaries of one rank, with the communication cost of each step.

    The telemetry file receives the run's totals on `close`, or at the interpreter's exit.
    """

    def __init__(
        self,
        exchange: Exchange,
        directory: Path | None,
        on_step: Callable[[StepSummary], None] | None,
        *,
        rank: int,
    ) -> None:
        """Create a report of step summaries; `directory` None writes no telemetry file.

        `rank` is the rank in the whole job, since the exchange may be of a subgroup.
        """
        self.last_step: StepSummary | None = None
        self.rank = rank
        """The rank in the whole job."""
        self.on_settled: Callable[[], None] | None = None
        """Called when the last parameter of an optimizer has taken its step."""
        self._exchange = exchange
        self._on_step = on_step
        self._totals = Totals(rank)
        self._rails: tuple[str, ...] = ()
        self._recorders: list[Recorder] = []
        self._writer = None
        plain_steps.leave()
        environment = Environment.read()
        self._log = log_of(environment)
        if directory is not None:
            limit = environment.telemetry_limit
            self._writer = Writer(directory, rank, limit_bytes=limit or DEFAULT_LIMIT_BYTES)
        if self._writer is not None:
            atexit.register(self.end)

    def group_bytes(self, value: int | None, origin: str) -> None:
        """Write the size of groups of gradients with its origin to the telemetry file.

        `value` is None while the size is still to be found by trial.
        """
        self.write(
            Setting(
                rank=self.rank,
                time_ns=time.time_ns(),
                name="group_bytes",
                value="" if value is None else f"{value}B",
                origin=origin,
            )
        )

    def recorders(self, count: int) -> list[Recorder]:
        """Return the recorders of `count` optimizers, which deliver their records to this object.

        The recorders split the time of reductions by phase if a file or a callback receives steps,
        and the first one records the times of the calling thread on a core. A callback receives
        the details of every step; for a file alone, their time is limited.
        """
        received = self._writer is not None or self._on_step is not None
        timeline = Timeline() if received else None
        self._exchange.notes_ends |= received
        alone = self._writer is not None and self._on_step is None
        budget = DetailBudget(time.monotonic_ns()) if alone else None
        core_times = open_core_times() if received else None
        self._recorders = [
            Recorder(
                self.rank,
                number,
                self.take,
                decide=self.decided,
                promise=self.promised,
                timeline=timeline,
                budget=budget,
                core_times=None if number else core_times,
            )
            for number in range(count)
        ]
        return self._recorders

    def decided(self, subject: str, choice: str, reason: str) -> None:
        """Write a record of a decision: the subject, such as "groups", the choice and the reason.

        Without a telemetry file and a log, does nothing.
        """
        self.write(
            Decision(
                rank=self.rank,
                time_ns=time.time_ns(),
                subject=subject,
                choice=choice,
                reason=reason,
            )
        )

    def promised(self, source: str, choice: str, wall_ns: int) -> None:
        """Write a record of a predicted step time: its source, such as "groups", and the choice.

        Without a telemetry file, does nothing.
        """
        self.write(
            Promise(
                rank=self.rank,
                time_ns=time.time_ns(),
                source=source,
                choice=choice,
                wall_ns=wall_ns,
            )
        )

    @property
    def read(self) -> bool:
        """Whether records go to a telemetry file or to the log."""
        return self._writer is not None or self._log is not None

    def take(self, summary: StepSummary) -> None:
        """Record the summary of a finished step; write it to the file and call the callbacks."""
        self.last_step = summary
        self._totals.add(summary)
        self.write(summary)
        if self.on_settled is not None:
            self.on_settled()
        if self._on_step is not None:
            self._on_step(summary)

    def write(self, record: Written) -> None:
        """Write a record to the telemetry file and to the log, where there are any."""
        if self._writer is not None:
            self._writer.write(record)
        if self._log is not None:
            self._log.take(record)

    def run_summary(self) -> RunSummary:
        """Return the communication cost of all training steps so far."""
        # A closed group cannot list its rails (paths to peers), so the rails listed before stay.
        with suppress(SlacklineError):
            self._rails = self._exchange.rails()
        return self._totals.run(self._rails)

    def end(self) -> None:
        """Write the last step and the run's totals to the telemetry file at the interpreter's exit.

        The updates of the last step wait for a reader of the parameters. A script that ends without
        one has taken the step nevertheless. The callback is not called any more.
        """
        self._on_step = None
        for recorder in self._recorders:
            recorder.settled()
        self.close()

    def close(self) -> None:
        """Write the training run's totals to the telemetry file; a second call does nothing."""
        if self._writer is not None:
            atexit.unregister(self.end)
            self._writer.write(self.run_summary())
            self._writer.close()
            self._writer = None

"""The delivery of step summaries: to a callback, a telemetry file, the log, and a run's totals."""

import atexit
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from slackline.backend import plain_steps
from slackline.errors import SlacklineError
from slackline.overlap._detail_budget import DetailBudget
from slackline.overlap._notes import Notes
from slackline.overlap._recorder import Recorder
from slackline.overlap._timeline import Timeline
from slackline.overlap.exchange import Exchange
from slackline.records import (
    Promise,
    RunSummary,
    Setting,
    StateHash,
    StepSummary,
    Totals,
    open_core_times,
)

__all__ = ["Report"]

_log = logging.getLogger("slackline.overlap")


class Report(Notes):
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
        super().__init__(rank, directory)
        self.last_step: StepSummary | None = None
        self.last_hash: Callable[[], str] | None = None
        """A function that returns the hash of the state, for the record at the end."""
        self._exchange = exchange
        self._on_step = on_step
        self._totals = Totals(rank)
        self._rails: tuple[str, ...] = ()
        self._recorders: list[Recorder] = []
        plain_steps.leave()
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

    def take(self, summary: StepSummary) -> None:
        """Record the summary of a finished step; write it to the file and call the callbacks."""
        self.last_step = summary
        self._totals.add(summary)
        self.write(summary)
        if self.on_settled is not None:
            self.on_settled()
        if self._on_step is not None:
            self._on_step(summary)

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
            self._hash_state()
            self._writer.write(self.run_summary())
        super().close()

    def _hash_state(self) -> None:
        """Write the hash of the state, if one is asked for and the program has not failed."""
        if self.last_hash is None or self.last_step is None or hasattr(sys, "last_value"):
            return
        try:
            found = self.last_hash()
        except SlacklineError as error:
            _log.warning("the state has no hash: %s", error)
            return
        self.write(
            StateHash(
                rank=self.rank,
                time_ns=time.time_ns(),
                step=self.last_step.step,
                part=0,
                parts=1,
                hash=found,
            )
        )

"""Counts what a step's communication cost, and tells when its last parameter is done.

Two steps can be open at once: one whose parameters still take their steps while the next one's
forward runs, and that next one.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from slackline.telemetry import StepSummary

__all__ = ["Clock", "Recorder"]

Clock = Callable[[], int]
"""Nanoseconds; only differences count."""


class Recorder:
    """The steps of one optimizer. Not thread-safe: the training thread owns it."""

    def __init__(
        self,
        rank: int,
        optimizer: int,
        emit: Callable[[StepSummary], None],
        *,
        clock: Clock = time.perf_counter_ns,
        unix: Clock = time.time_ns,
    ) -> None:
        self.clock = clock
        self._unix = unix
        self._emit = emit
        self._since = clock()
        self._blank = StepSummary(
            rank=rank,
            step=0,
            optimizer=optimizer,
            time_ns=0,
            wall_ns=0,
            exposed_ns=0,
            reduced_bytes=0,
            parameters=0,
            waited=0,
        )
        self._closing: StepSummary | None = None
        self._bytes = self._parameters = self._exposed_ns = self._waited = 0

    def posted(self, nbytes: int, parameters: int) -> None:
        """Gradients of so many bytes went to a reduction."""
        self._bytes += nbytes
        self._parameters += parameters

    def waited(self, ns: int, *, parameters: int = 1, late: bool = False) -> None:
        """The training thread stood still; `late`: for parameters of the closing step."""
        if late and self._closing is not None:
            closing = self._closing
            self._closing = replace(
                closing, exposed_ns=closing.exposed_ns + ns, waited=closing.waited + parameters
            )
        else:
            self._exposed_ns += ns
            self._waited += parameters

    def stepped(self) -> None:
        """The user called `step`: what was counted so far belongs to it."""
        self.settled()
        now = self.clock()
        self._closing = replace(
            self._blank,
            time_ns=self._unix(),
            wall_ns=now - self._since,
            exposed_ns=self._exposed_ns,
            reduced_bytes=self._bytes,
            parameters=self._parameters,
            waited=self._waited,
        )
        self._blank = replace(self._blank, step=self._blank.step + 1)
        self._bytes = self._parameters = self._exposed_ns = self._waited = 0
        self._since = now

    def settled(self) -> None:
        """Every parameter of the closing step has taken its step."""
        if self._closing is not None:
            summary, self._closing = self._closing, None
            self._emit(summary)

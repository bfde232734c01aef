"""The cost of each step's communication, reported when the step's last parameter is updated.

Two steps can be recorded at once: the parameters of one step may still be updated while the forward
of the next step runs.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from slackline.telemetry import StepSummary

__all__ = ["Clock", "Recorder"]

Clock = Callable[[], int]
"""A clock in nanoseconds of which only differences are used."""


class Recorder:
    """The recorder of the communication cost of each optimizer step.

    Only the training thread may use it.
    """

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
        """Record a posted reduction of `nbytes` bytes with so many parameters' gradients."""
        self._bytes += nbytes
        self._parameters += parameters

    def waited(self, ns: int, *, parameters: int = 1, late: bool = False) -> None:
        """Record that the training thread has waited `ns` nanoseconds for reductions.

        With `late`, the time counts for the step that `stepped` has closed, else for the next one.
        """
        if late and self._closing is not None:
            closing = self._closing
            self._closing = replace(
                closing, exposed_ns=closing.exposed_ns + ns, waited=closing.waited + parameters
            )
        else:
            self._exposed_ns += ns
            self._waited += parameters

    def stepped(self) -> None:
        """Record the user's call of the optimizer's `step`, to which the counts so far belong."""
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
        """Report the latest optimizer step's cost, once, after its last parameter was updated."""
        if self._closing is not None:
            summary, self._closing = self._closing, None
            self._emit(summary)

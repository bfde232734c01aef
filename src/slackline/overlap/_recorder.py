"""The cost of each step's communication, reported when the step's last parameter is updated.

Two steps can be recorded at once: the parameters of one step may still be updated while the forward
of the next step runs.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from slackline.telemetry import StepSummary

__all__ = ["Clock", "Recorder"]

Clock = Callable[[], int]
"""A clock in nanoseconds of which only differences are used."""


@dataclass(slots=True)
class _Group:
    """The costs of one group of gradients in a step."""

    nbytes: int
    posted_ns: int
    exposed_ns: int = 0
    late_ns: int = 0


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
        self._closing_groups: dict[int, _Group] = {}
        self._groups: dict[int, _Group] = {}
        self._forward_ns = self._backward_ns = 0
        self._forward_ended: int | None = None
        self._bytes = self._parameters = self._exposed_ns = self._waited = 0

    def forward_began(self) -> int:
        """Record that a forward begins; return the time, which `forward_ended` takes."""
        now = self.clock()
        self._end_backward(now)
        return now

    def forward_ended(self, began: int) -> None:
        """Record the end of the forward that began at the time `began`."""
        self._forward_ended = self.clock()
        self._forward_ns += self._forward_ended - began

    def posted(self, nbytes: int, parameters: int, *, group: int = 0) -> None:
        """Record a posted reduction of `nbytes` bytes: the gradients of `parameters` parameters.

        `group` is the number of the reduction's first parameter.
        """
        known = self._groups.get(group)
        if known is None:
            self._groups[group] = _Group(nbytes, self.clock() - self._since)
        else:  # A gradient that is complete again within the step is reduced again.
            known.nbytes += nbytes
        self._bytes += nbytes
        self._parameters += parameters

    def waited(
        self, ns: int, *, parameters: int = 1, late: bool = False, group: int | None = None
    ) -> None:
        """Record that the training thread has waited `ns` nanoseconds for reductions.

        `group` is the group number that was passed to `posted`, or None for other communication.
        With `late`, the time counts for the step that `stepped` has closed, else for the next step.
        """
        if late and self._closing is not None:
            if group in self._closing_groups:
                self._closing_groups[group].late_ns += ns
            closing = self._closing
            self._closing = replace(
                closing, exposed_ns=closing.exposed_ns + ns, waited=closing.waited + parameters
            )
        else:
            if group in self._groups:
                self._groups[group].exposed_ns += ns
            self._exposed_ns += ns
            self._waited += parameters

    def stepped(self) -> None:
        """Close the record of one step: the user has called the optimizer's `step`."""
        self.settled()
        now = self.clock()
        self._end_backward(now)
        self._closing_groups, self._groups = self._groups, {}
        self._closing = replace(
            self._blank,
            time_ns=self._unix(),
            wall_ns=now - self._since,
            exposed_ns=self._exposed_ns,
            reduced_bytes=self._bytes,
            parameters=self._parameters,
            waited=self._waited,
            forward_ns=self._forward_ns,
            backward_ns=self._backward_ns,
        )
        self._forward_ns = self._backward_ns = 0
        self._blank = replace(self._blank, step=self._blank.step + 1)
        self._bytes = self._parameters = self._exposed_ns = self._waited = 0
        self._since = now

    def settled(self) -> None:
        """Report the latest optimizer step's cost, once, after its last parameter was updated."""
        if self._closing is not None:
            summary, self._closing = self._closing, None
            groups = self._closing_groups
            self._emit(
                replace(
                    summary,
                    groups=tuple(groups),
                    group_bytes=tuple(group.nbytes for group in groups.values()),
                    group_posted_ns=tuple(group.posted_ns for group in groups.values()),
                    group_exposed_ns=tuple(group.exposed_ns for group in groups.values()),
                    group_late_ns=tuple(group.late_ns for group in groups.values()),
                )
            )

    def _end_backward(self, now: int) -> None:
        """Count the time since the latest forward of this step as backward."""
        if self._forward_ended is not None:
            self._backward_ns += now - self._forward_ended
            self._forward_ended = None

"""The cost of each step's communication, reported when the step's last parameter is updated.

Two steps can be recorded at once: the parameters of one step may still be updated while the forward
of the next step runs.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from slackline.overlap._detail_budget import DetailBudget
from slackline.overlap._timeline import Split, Timeline, TrainingPhase
from slackline.overlap.exchange import Pending
from slackline.records import CoreTimes, StepSummary

__all__ = ["Clock", "Recorder"]

Clock = Callable[[], int]
"""A monotonic clock in nanoseconds."""


@dataclass(slots=True)
class _Group:
    """The costs of one group of gradients in a step."""

    nbytes: int
    posted_ns: int
    """The time of the first post, from the beginning of the step."""
    exposed_ns: int = 0
    late_ns: int = 0
    exposed_by_phase: list[int] = field(default_factory=lambda: [0, 0, 0])
    reductions: list[tuple[int, Pending | None]] = field(default_factory=list)
    """The time of each post, and the reduction; None: the reduction ended within its post."""


@dataclass(slots=True)
class _Step:
    """The costs of one step so far."""

    began_ns: int
    detailed: bool
    """Whether the times of each group of gradients are recorded."""
    groups: dict[int, _Group] = field(default_factory=dict)
    nbytes: int = 0
    parameters: int = 0
    waited: int = 0
    exposed_ns: int = 0
    forward_ns: int = 0
    backward_ns: int = 0
    optimizer_ns: int = 0
    run_ns: int | None = None
    run_delay_ns: int | None = None
    wall_ns: int = 0
    unix_ns: int = 0


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
        decide: Callable[[str, str, str], None] | None = None,
        promise: Callable[[str, str, int], None] | None = None,
        timeline: Timeline | None = None,
        budget: DetailBudget | None = None,
        core_times: Callable[[], CoreTimes] | None = None,
        clock: Clock = time.monotonic_ns,
        unix: Clock = time.time_ns,
    ) -> None:
        """Create a recorder that passes the summary of each step to `emit`.

        `decide` receives the subject, the choice and the reason of each decision, and `promise` the
        source, the choice and the nanoseconds of each predicted step time.
        With a `timeline` the summaries split the time of each reduction by phase. The timeline's
        times are read from `clock`, which must be the clock by which reductions state their ends.
        With a `budget`, only steps that the budget allows have details: the times of each group of
        gradients, and hidden time.
        `core_times` returns the times for which the training thread has run on a core, and waited
        for one, so far.
        """
        self.clock = clock
        self._unix = unix
        self._emit = emit
        self._decide = decide
        self._promise = promise
        self._rank, self._optimizer = rank, optimizer
        self._timeline = timeline
        self._budget = budget
        self._core_times = core_times
        self._latest_times = None if core_times is None else core_times()
        self._number = 0
        self._open = self._begin(clock())
        self._closing: _Step | None = None
        self._forward_ended: int | None = None

    def forward_began(self) -> int:
        """Record that a forward begins; return the time, which `forward_ended` takes."""
        now = self.clock()
        self._end_backward(now)
        if self._timeline is not None:
            self._timeline.enter(TrainingPhase.FORWARD, now)
        return now

    def forward_ended(self, began: int) -> None:
        """Record the end of the forward that began at the time `began`."""
        self._forward_ended = now = self.clock()
        self._open.forward_ns += now - began
        if self._timeline is not None:
            self._timeline.enter(TrainingPhase.BACKWARD, now)

    def step_called(self) -> None:
        """Record that the user has called the optimizer's `step`."""
        now = self.clock()
        self._end_backward(now)
        if self._timeline is not None:
            self._timeline.enter(TrainingPhase.STEP, now)

    def posted(
        self, nbytes: int, parameters: int, *, group: int = 0, pending: Pending | None = None
    ) -> None:
        """Record a posted reduction of `nbytes` bytes: the gradients of `parameters` parameters.

        `group` is the number of the reduction's first parameter. `pending` is the reduction; None
        if the reduction has ended already.
        """
        step, now = self._open, self.clock()
        step.nbytes += nbytes
        step.parameters += parameters
        if not step.detailed:
            return
        known = step.groups.get(group)
        if known is None:
            known = step.groups[group] = _Group(nbytes, now - step.began_ns)
        else:  # A gradient that is complete again within the step is reduced again.
            known.nbytes += nbytes
        if self._timeline is not None:
            # A reduction that ends within its post runs in the training thread: nothing is hidden.
            ended = pending is None or pending.done()
            known.reductions.append((now, None if ended else pending))

    def waited(
        self, began: int, *, parameters: int = 1, late: bool = False, group: int | None = None
    ) -> None:
        """Record that the training thread has waited for reductions since the time `began`.

        `group` is the group number that was passed to `posted`, or None for other communication.
        With `late`, the time counts for the step that `stepped` has closed, else for the next step.
        """
        now = self.clock()
        ns = now - began
        late = late and self._closing is not None
        step = self._closing if late and self._closing is not None else self._open
        step.exposed_ns += ns
        step.waited += parameters
        costs = None if group is None else step.groups.get(group)
        if costs is not None and late:
            costs.late_ns += ns
        elif costs is not None:
            costs.exposed_ns += ns
        if self._timeline is not None and self._follows():
            self._timeline.wait(began, now)
            if costs is not None:
                costs.exposed_by_phase[self._timeline.phase] += ns

    def updated(self, ns: int) -> None:
        """Record that the optimizer's own code has run for `ns` nanoseconds.

        The time counts for the step that `stepped` has closed and that still has pending updates,
        else for the next step.
        """
        step = self._open if self._closing is None else self._closing
        step.optimizer_ns += ns

    def stepped(self) -> None:
        """Close the record of one step: the user has called the optimizer's `step`."""
        self.settled()
        now = self.clock()
        self._end_backward(now)
        if self._timeline is not None:
            self._timeline.enter(TrainingPhase.STEP, now)
        self._closing = self._open
        self._closing.unix_ns = self._unix()
        self._closing.wall_ns = now - self._closing.began_ns
        if self._core_times is not None and self._latest_times is not None:
            before, self._latest_times = self._latest_times, self._core_times()
            self._closing.run_ns, self._closing.run_delay_ns = self._latest_times.since(before)
        self._open = self._begin(now)

    def settled(self) -> None:
        """Report the latest optimizer step's cost, once, after its last parameter was updated."""
        if self._closing is None:
            return
        step, self._closing = self._closing, None
        began = self.clock()
        groups = step.groups
        summary = StepSummary(
            rank=self._rank,
            step=self._number,
            optimizer=self._optimizer,
            time_ns=step.unix_ns,
            wall_ns=step.wall_ns,
            exposed_ns=step.exposed_ns,
            reduced_bytes=step.nbytes,
            parameters=step.parameters,
            waited=step.waited,
            forward_ns=step.forward_ns,
            backward_ns=step.backward_ns,
            optimizer_ns=step.optimizer_ns,
            run_ns=step.run_ns,
            run_delay_ns=step.run_delay_ns,
            groups=tuple(groups),
            group_bytes=tuple(group.nbytes for group in groups.values()),
            group_posted_ns=tuple(group.posted_ns for group in groups.values()),
            group_exposed_ns=tuple(group.exposed_ns for group in groups.values()),
            group_late_ns=tuple(group.late_ns for group in groups.values()),
            detailed=step.detailed,
            **(_phases(step, self._timeline) if self._timeline and step.detailed else {}),
        )
        if self._budget is not None and step.detailed:
            self._budget.spend(self.clock() - began)
        self._number += 1
        self._emit(summary)

    def decided(self, subject: str, choice: str, reason: str) -> None:
        """Record a decision about the reductions of this optimizer's gradients."""
        if self._decide is not None:
            of = f"optimizer {self._optimizer}: " if self._optimizer else ""
            self._decide(subject, of + choice, reason)

    def promised(self, source: str, choice: str, wall_ns: int) -> None:
        """Record a prediction of the duration of this optimizer's next steps."""
        if self._promise is not None and not self._optimizer:
            self._promise(source, choice, wall_ns)

    def _begin(self, now: int) -> _Step:
        """Return the record of a step that begins now."""
        return _Step(now, self._budget is None or self._budget.allows(now))

    def _follows(self) -> bool:
        """Return whether a step is under way whose hidden time is recorded."""
        return self._open.detailed or (self._closing is not None and self._closing.detailed)

    def _end_backward(self, now: int) -> None:
        """Count the time since the latest forward of this step as backward."""
        if self._forward_ended is not None:
            self._open.backward_ns += now - self._forward_ended
            self._forward_ended = None


def _phases(step: _Step, timeline: Timeline) -> dict[str, Any]:
    """Return the fields of a StepSummary that split the time of reductions by phase."""
    ended: list[int] = []
    hidden: list[Split] = []
    exposed: list[Split] = []
    spans: list[tuple[int, int]] = []
    known = True
    for group in step.groups.values():
        last_ns, sums = step.began_ns, (0, 0, 0)
        for posted_ns, pending in group.reductions:
            ended_ns = posted_ns if pending is None else pending.ended_ns
            if ended_ns == 0:  # The exchange does not know the times of its reductions.
                last_ns, known = step.began_ns, False
                break
            forward, backward, update = timeline.hidden(posted_ns, ended_ns)
            sums = sums[0] + forward, sums[1] + backward, sums[2] + update
            spans.append((posted_ns, ended_ns))
            last_ns = max(last_ns, ended_ns)
        ended.append(last_ns - step.began_ns)
        hidden.append(sums)
        in_forward, in_backward, in_step = group.exposed_by_phase
        exposed.append((in_forward, in_backward, in_step))
    found: dict[str, Any] = {
        "hidden_ns": timeline.hidden_once(spans) if known else None,
        "group_ended_ns": tuple(ended),
    }
    for phase in TrainingPhase:
        for name, table in (("hidden", hidden), ("exposed", exposed)):
            column = tuple(row[phase] for row in table)
            # A phase without any such time has no column: a step may have hundreds of groups.
            found[f"group_{phase.name.lower()}_{name}_ns"] = column if any(column) else ()
    return found

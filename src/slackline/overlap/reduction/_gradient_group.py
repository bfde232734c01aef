"""Gradients that one operation reduces, with one post, one wait and, where possible, one step.

A group is a run of adjacent gradients in the exchange's memory, of one type and one optimizer. A
group of one gradient is the paper's PCCO (a reduction for each parameter), which suits large
gradients on a slow network. For small gradients on a fast network, the posts and waits cost more
than the overlap hides, so several gradients form a group.

    flat buffers    | w2 1 | b2 1 | w1 1 | b1 1 |
    groups          '------.------'------.------'
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from slackline.errors import UsageError
from slackline.overlap.exchange import Exchange, Pending
from slackline.overlap.reduction._parameter_state import ParameterState, Use

__all__ = ["GradientGroup", "count_groups", "cut"]


class GradientGroup:
    """Parameters with adjacent gradient buffers, which one operation reduces together."""

    def __init__(
        self, states: Sequence[ParameterState], reduce: Callable[[int], Pending], sent_bytes: int
    ) -> None:
        """Create a gradient group of these parameters.

        `reduce` posts the reduction of all their buffers; its argument is the priority.
        `sent_bytes` are the bytes of their buffers in the type in which they travel.
        """
        self.states = tuple(states)
        self.posted = False
        """True if a reduction of the group has been posted since the latest step."""
        self.complete = False
        """True if the gradients of all members have arrived since the latest step."""
        self.missing = 0
        """The members without a gradient in this step; valid after `arm`, `arrive` or `look`."""
        self.last: ParameterState | None = None
        """The member whose gradient arrived last and so completed the group."""
        self.usual: ParameterState | None = None
        """The member whose gradient completed the group in each of the latest `steady` steps."""
        self.steady = 0
        self.hooked_last: ParameterState | None = None
        """The only member with a hook; None while all members have hooks."""
        self.changes: tuple[list[tuple[ParameterState, Use]], ...] = ([], [])
        """Members whose Use has changed, with the new Use; one list for each parity of the step."""
        self._parity = 0
        self._learns = len(states) > 1 and states[0].flat.device.type == "cpu"
        self._reduce = reduce
        self._nbytes = sent_bytes
        self._pending: Pending | None = None
        self._in_flight: Sequence[ParameterState] = ()
        self._members: Sequence[ParameterState] | None = None
        self.restart()

    @property
    def key(self) -> int:
        """The number of the group's first parameter, which identifies the gradient group."""
        return self.states[0].index

    @property
    def priority(self) -> int:
        """The priority of the group's most urgent parameter; a smaller number is more urgent."""
        return min(state.priority for state in self.states)

    @property
    def members(self) -> list[ParameterState]:
        """The parameters of the group that require gradients now; the user may freeze some."""
        return [state for state in self.states if state.parameter.requires_grad]

    def restart(self) -> None:
        """Reset for the next training step: no gradient has arrived or been posted yet."""
        self.posted = self.complete = False
        self._members = None
        for state in self.states:
            state.posted = state.extra = state.arrived = state.armed = False

    def arm(self) -> None:
        """Let the hooks of the group's parameters count arrivals by themselves, until `disarm`."""
        if self.posted:
            return
        for state in self._count():
            state.armed = not state.arrived

    def disarm(self) -> None:
        """Let the hooks of the group's parameters report each gradient to the reducer again."""
        for state in self._members or ():
            state.armed = False

    def arrive(self, state: ParameterState) -> bool:
        """Record the arrival of one parameter's gradient; return whether the group is complete."""
        self._count()
        if not state.arrived:
            state.arrived, state.armed = True, False
            self.missing -= 1
        self.last = state
        return self.missing == 0

    def look(self) -> bool:
        """Check which parameters of the group have a gradient; return whether none is missing."""
        members = self._count()
        late = [state for state in members if state.parameter.grad is None]
        self.missing = len(late)
        if late:
            for state in members:
                state.arrived = state.parameter.grad is not None
        return not late

    def has_gradients(self) -> bool:
        """Return whether some parameter of the group has a gradient."""
        return any(state.parameter.grad is not None for state in self.states)

    def _count(self) -> Sequence[ParameterState]:
        """Return the parameters that belong to the group in this step.

        The first call of a step also sets `missing` to their number.
        """
        if self._members is None:
            self._members = self.members
            self.missing = len(self._members)
        return self._members

    def post(self, parity: int = 0) -> int:
        """Post the reduction of the group's gradients, with zeros for gradients that are None.

        `parity` is the parity of the step's number. Returns the bytes of the reduction. The
        exchange owns the buffers until `wait` returns.
        """
        self._parity = parity
        self._in_flight = members = self._count()
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for state in members:
            state.load(targets, sources)
        if targets:
            with torch.no_grad():
                torch._foreach_copy_(targets, sources)
        self._pending = self._reduce(self.priority)
        self.posted = True
        for state in members:
            state.post(self)
        return self._nbytes

    @property
    def pending(self) -> Pending | None:
        """The group's latest reduction; None once `wait` has returned."""
        return self._pending

    def done(self) -> bool:
        """Return whether the group's reduction has ended, so that `wait` returns at once."""
        return self._pending is None or self._pending.done()

    def wait(self) -> None:
        """Block until the reduction is done, then store the results as the parameters' `grad`.

        Raises the reduction's error, or UsageError if a gradient was written to meanwhile.
        """
        if self._pending is None:
            return
        try:
            self._pending.wait()
        except Exception as error:
            error.add_note(self._note())
            raise
        self._pending = None
        written = None
        for state in self._in_flight:
            try:
                state.reduced()
            except UsageError as error:
                written = error
        if self._learns:
            self.changes[self._parity].extend(
                (state, use) for state in self._in_flight if (use := state.told()) is not state.use
            )
        if written is not None:
            raise written

    def _note(self) -> str:
        first, others = self._in_flight[0].name, len(self._in_flight) - 1
        if not others:
            return f"while the gradient of {first!r} was reduced"
        return f"while the gradients of {first!r} and {others} more were reduced"


def cut(
    states: Sequence[ParameterState], group_bytes: int, exchange: Exchange, *, average: bool
) -> list[GradientGroup]:
    """Cut a sequence of gradients into groups of at most `group_bytes` bytes.

    If `group_bytes` is 0, each group has one gradient.
    A larger gradient is a group of its own. A gradient that not all ranks have in every step is
    also a group of its own, since a group is posted only when all its gradients have arrived.
    Gradients that no rank has form groups apart from the others.
    """
    groups = []
    for members in _runs(states, group_bytes):
        # `flat` is no view of the gradients, so torch's reduction leaves the gradients' version
        # counters unchanged.
        flat = exchange.span(members[0].flat, members[-1].flat)
        reduce = exchange.reduction(members[0].index, flat, average=average)
        sent_bytes = sum(exchange.sent_bytes(state.flat) for state in members)
        groups.append(GradientGroup(members, reduce, sent_bytes))
    return groups


def count_groups(states: Sequence[ParameterState], group_bytes: int) -> int:
    """Return the number of gradient groups that `cut` would form."""
    return sum(1 for _ in _runs(states, group_bytes))


def _runs(states: Sequence[ParameterState], group_bytes: int) -> Iterator[list[ParameterState]]:
    run: list[ParameterState] = []
    length = 0
    for state in states:
        if run and (not _alike(run[-1], state) or length + state.nbytes > group_bytes):
            yield run
            run, length = [], 0
        run.append(state)
        length += state.nbytes
    if run:
        yield run


def _alike(state: ParameterState, following: ParameterState) -> bool:
    """Return whether two gradients that are adjacent in memory may be in one group."""
    return (
        state.block == following.block
        and state.flat.dtype is following.flat.dtype
        and state.use is following.use is not Use.SOMEWHERE
    )

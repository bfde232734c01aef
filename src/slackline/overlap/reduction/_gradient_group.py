"""Gradients that one operation reduces, with one post, one wait and, where possible, one step.

A group is a run of adjacent gradients in the exchange's memory, of one type and one optimizer. A
group of one gradient is the paper's PCCO (a reduction for each parameter), which suits large
gradients on a slow network. For small gradients on a fast network, the posts and waits cost more
than the overlap hides, so several gradients form a group.

    flat buffers    | w2 1 | b2 1 | w1 1 | b1 1 |
    groups          '------.------'------.------'
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from slackline.overlap.exchange import Exchange, Pending
from slackline.overlap.reduction._parameter_state import ParameterState, Use

__all__ = ["Divisor", "GradientGroup", "Posting", "count_groups", "cut"]


class Divisor(Protocol):
    """A number that divides the sums of one step, and that may still be on its way."""

    def done(self) -> bool:
        """Return whether the number is not on its way, so that `wait` returns at once."""

    def wait(self) -> float:
        """Block until the number has come; raise UsageError if nothing can be divided by it."""

    def settle(self) -> None:
        """Block until the number is not on its way."""


class Posting:
    """A reduction of a group's gradients that has been posted and not been awaited yet."""

    __slots__ = ("divisor", "group", "parity", "pending", "states")

    def __init__(
        self,
        group: "GradientGroup",
        states: Sequence[ParameterState],
        pending: Pending,
        parity: int,
        divisor: Divisor | None,
    ) -> None:
        self.group = group
        self.states = states
        """The members of the group that take part: those that required gradients at the post."""
        self.pending = pending
        self.parity = parity
        """The parity of the number of the step that posted the reduction."""
        self.divisor = divisor
        """The number that divides the result; None: the result is not divided."""

    def done(self) -> bool:
        """Return whether the reduction has ended, so that `wait` returns at once."""
        return self.pending.done() and (self.divisor is None or self.divisor.done())

    def wait(self) -> None:
        """Block until the reduction has ended; raise its error, with the names of gradients."""
        try:
            if self.divisor is not None:
                self.divisor.wait()
            self.pending.wait()
        except Exception as error:
            error.add_note(self._note())
            raise

    def _note(self) -> str:
        first, others = self.states[0].name, len(self.states) - 1
        if not others:
            return f"while the gradient of {first!r} was reduced"
        return f"while the gradients of {first!r} and {others} more were reduced"


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
        self.nbytes = sent_bytes
        """The bytes of a reduction of the group, in the type in which they travel."""
        self.changes: tuple[list[tuple[ParameterState, Use]], ...] = ([], [])
        """Members whose Use has changed, with the new Use; one list for each parity of the step."""
        self._learns = len(states) > 1 and states[0].flat.device.type == "cpu"
        self._reduce = reduce

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

    def has_gradients(self) -> bool:
        """Return whether some parameter of the group has a gradient."""
        return any(state.parameter.grad is not None for state in self.states)

    def post(
        self, members: Sequence[ParameterState], parity: int, divisor: Divisor | None = None
    ) -> Posting:
        """Post the reduction of the group's gradients, with zeros for gradients that are None.

        `members` are the parameters that required gradients at the step's beginning, and `parity`
        is the parity of the step's number. `divisor` divides the results. The exchange owns the
        buffers until the reduction ends.
        """
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for state in members:
            state.load(targets, sources)
        if targets:
            with torch.no_grad():
                torch._foreach_copy_(targets, sources)
        posting = Posting(self, members, self._reduce(self.priority), parity, divisor)
        for state in members:
            state.posted()
        return posting

    def learn(self, posting: Posting) -> None:
        """Record which members' Use has changed, as a reduction that has just ended tells."""
        if self._learns:
            self.changes[posting.parity].extend(
                (state, use) for state in posting.states if (use := state.told()) is not state.use
            )


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

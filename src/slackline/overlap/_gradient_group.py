"""Gradients that are reduced together: one post, one wait and, where it can be, one step.

A group is a run of neighbours in the exchange's memory, of one type and one optimizer. A group of
one is the paper's PCCO: right for large gradients on a slow wire. Small gradients on a fast one
cost more in posts and waits than they hide, and are reduced several at a time.

    flat buffers    | w2 1 | b2 1 | w1 1 | b1 1 |
    groups          '------.------'------.------'
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from slackline.errors import UsageError
from slackline.overlap._exchange import Exchange, Pending
from slackline.overlap._parameter_state import ParameterState, Use

__all__ = ["GradientGroup", "count_groups", "cut"]


class GradientGroup:
    """Neighbours in memory whose gradients are one reduction."""

    def __init__(self, states: Sequence[ParameterState], reduce: Callable[[int], Pending]) -> None:
        """`reduce` posts the memory of all of them with a priority."""
        self.states = tuple(states)
        self.posted = False
        """Whether a reduction of it has been posted since the last step."""
        self.missing = 0
        """How many members' gradients have not come since the last step; counted from `arm` on."""
        self.last: ParameterState | None = None
        """The member whose gradient made the group whole."""
        self.usual: ParameterState | None = None
        """The one that did so in `steady` steps before."""
        self.steady = 0
        self.hooked_last: ParameterState | None = None
        """Only this member has a hook; None: all have."""
        self.changes: tuple[list[tuple[ParameterState, Use]], ...] = ([], [])
        """Members that were used as they had not been, and how; by the parity of the step."""
        self._parity = 0
        self._learns = len(states) > 1 and states[0].flat.device.type == "cpu"
        self._reduce = reduce
        self._nbytes = sum(state.nbytes for state in states)
        self._pending: Pending | None = None
        self._in_flight: Sequence[ParameterState] = ()
        self._members: Sequence[ParameterState] | None = None
        self.restart()

    @property
    def key(self) -> int:
        """The number of its first member: no other group has it."""
        return self.states[0].index

    @property
    def priority(self) -> int:
        """That of its most urgent member."""
        return min(state.priority for state in self.states)

    @property
    def members(self) -> list[ParameterState]:
        """Those that can have gradients: parameters may have been frozen since the last step."""
        return [state for state in self.states if state.parameter.requires_grad]

    def restart(self) -> None:
        """Begin another step: nothing has come or was posted."""
        self.posted = False
        self._members = None
        for state in self.states:
            state.posted = state.extra = state.arrived = state.armed = False

    def arm(self) -> None:
        """Have the members' hooks count `missing` down by themselves, until `disarm`."""
        if self.posted:
            return
        for state in self._count():
            state.armed = not state.arrived

    def disarm(self) -> None:
        """Have the members' hooks report each gradient."""
        for state in self._members or ():
            state.armed = False

    def arrive(self, state: ParameterState) -> bool:
        """Note the gradient of a member; return whether it was the last one to come."""
        self._count()
        if not state.arrived:
            state.arrived, state.armed = True, False
            self.missing -= 1
        self.last = state
        return self.missing == 0

    def look(self) -> bool:
        """Note the members that have gradients; return whether all have."""
        members = self._count()
        late = [state for state in members if state.parameter.grad is None]
        self.missing = len(late)
        if late:
            for state in members:
                state.arrived = state.parameter.grad is not None
        return not late

    def has_gradients(self) -> bool:
        """Whether some member has one."""
        return any(state.parameter.grad is not None for state in self.states)

    def _count(self) -> Sequence[ParameterState]:
        """Return the members of this step."""
        if self._members is None:
            self._members = self.members
            self.missing = len(self._members)
        return self._members

    def post(self, parity: int = 0) -> int:
        """Give the members' gradients, or zeros where there are none, to a reduction.

        `parity`: of the step's number. Returns the bytes that the reduction carries.
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

    def done(self) -> bool:
        """Whether `wait` would not block."""
        return self._pending is None or self._pending.done()

    def wait(self) -> None:
        """Block until the reduction is done, then show the results as the members' grads."""
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
            uses = [(state, state.told()) for state in self._in_flight]
            self.changes[self._parity].extend(
                (state, use) for state, use in uses if use is not state.use
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
    """Return groups of neighbours of at most `group_bytes` each; each state alone for 0.

    A gradient that is longer than that is a group of its own. So is one that not all ranks have in
    every step: a group is posted when its last gradient has come. Those that nobody has are apart
    from the others.
    """
    groups = []
    for members in _runs(states, group_bytes):
        # A tensor of its own: where torch reduces it, the gradients' versions stay.
        flat = exchange.span(members[0].flat, members[-1].flat)
        reduce = exchange.reduction(members[0].index, flat, average=average)
        groups.append(GradientGroup(members, reduce))
    return groups


def count_groups(states: Sequence[ParameterState], group_bytes: int) -> int:
    """Return how many groups `cut` would make."""
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
    """Return whether two neighbours may be in one group."""
    return (
        state.block == following.block
        and state.flat.dtype is following.flat.dtype
        and state.use is following.use is not Use.SOMEWHERE
    )

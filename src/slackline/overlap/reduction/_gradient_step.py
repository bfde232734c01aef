"""The state of one optimizer's gradients between two calls of its `step`.

The reducer reports each event, and learns from the answer which groups it may post now:

    event                           answer
    a gradient has arrived          the groups that are complete, in the order in which to post them
    the user calls `step`           the groups that are missing, whose gradients are then zeros
    all groups are posted           whether the ranks must agree on gradients that came afterwards

A second backward may add to gradients that are already posted. These gradients are *extra*: they
are reduced once more, on all ranks, if any rank has one.
"""

from collections.abc import Iterable, Sequence

from slackline.overlap.exchange import InOrder
from slackline.overlap.reduction._gradient_group import GradientGroup
from slackline.overlap.reduction._model_state import ModelState
from slackline.overlap.reduction._parameter_state import ParameterState

__all__ = ["GradientStep"]


class GradientStep:
    """The arrivals and posts since the latest step of one optimizer; the object does no I/O."""

    def __init__(self, model: ModelState, *, in_order: bool) -> None:
        """Create the state of a step without groups, which `follow` gives.

        `model` counts the passes through the wrapper's forward. With `in_order`, all ranks must
        post their groups in one order, so a group waits for the groups before it.
        """
        self.opened = False
        """True if gradients that all ranks must reduce have arrived."""
        self.reduced = False
        """True if all gradients of the step are reduced, and no backward pass has begun since."""
        self.agreed = False
        """True if the ranks have agreed on the extra gradients of all backward passes so far."""
        self.observed = False
        """True if the way in which gradients arrived has been recorded (see HookPlacement)."""
        self._model = model
        self._in_order = in_order
        self._groups: Sequence[GradientGroup] = ()
        self._group_of: dict[ParameterState, GradientGroup] = {}
        self._by_key: dict[int, GradientGroup] = {}
        self._order = InOrder(())
        self._before = model.backwards
        self._task = -1
        self._backwards = 0
        """The backward passes that reached this optimizer's parameters."""
        self._by_hand = 0
        """The backward passes whose gradients no hook reports."""
        self._arrived: set[ParameterState] = set()
        self._extra: set[ParameterState] = set()
        """The gradients to reduce once more, as far as this rank knows."""
        self.had_extra = False
        """True if a gradient has arrived after its reduction was posted."""
        self._members: dict[GradientGroup, Sequence[ParameterState]] = {}
        """The members of groups that require gradients, when the group was first used."""
        self._missing: dict[GradientGroup, int] = {}
        """The number of members without a gradient, for the groups in `_members`."""
        self._last: dict[GradientGroup, ParameterState] = {}
        """The members whose gradients completed their groups."""
        self._posted: set[GradientGroup] = set()
        self._posted_gradients: set[ParameterState] = set()

    def follow(self, groups: Sequence[GradientGroup]) -> None:
        """Count the gradients of `groups` from now on; a group that stays keeps its count."""
        self._groups = tuple(groups)
        self._group_of = {state: group for group in groups for state in group.states}
        if self._in_order:
            self._by_key = {group.key: group for group in groups}
            self._order = InOrder(tuple(self._by_key))

    def restart(self) -> None:
        """Begin another step: no gradient has arrived or been posted yet."""
        self.opened = self.reduced = self.agreed = self.observed = False
        self._before = self._model.backwards
        self._backwards = self._by_hand = 0
        self.had_extra = False
        for each in (
            *(self._arrived, self._extra, self._members, self._missing, self._last),
            *(self._posted, self._posted_gradients),
        ):
            each.clear()
        self._order.restart()

    @property
    def needs_agreement(self) -> bool:
        """True if the ranks must agree on extra gradients before the step can end.

        All ranks get the same value, since all ranks call backward equally often, whatever
        parameters a backward pass reaches. The passes through the wrapper's forward are counted; if
        there was none, the calls of `expect`, or the passes that reached this optimizer's
        parameters, are counted instead.
        """
        if self.agreed:
            return False
        through_forward = self._model.backwards - self._before
        return self.had_extra or (through_forward or self._by_hand or self._backwards) > 1

    @property
    def regular(self) -> bool:
        """True if one backward pass, through the wrapper's forward, has given all gradients."""
        through_forward = self._model.backwards - self._before
        return through_forward == 1 >= self._backwards and not self.had_extra

    @property
    def all_posted(self) -> bool:
        """True if each group has been posted."""
        return all(group in self._posted for group in self._groups)

    def count_backward(self, task: int) -> None:
        """Count a backward pass that has given gradients; `task` numbers autograd's graph task."""
        if task != self._task:
            self._task = task
            self._backwards += 1
            self.agreed = False

    def expect(self) -> None:
        """Count a backward pass that every rank makes, and whose gradients no hook reports."""
        self._by_hand += 1
        self.agreed = self.reduced = False

    def arrive(self, state: ParameterState) -> Sequence[GradientGroup]:
        """Record the arrival of a gradient; return the groups that may now be posted, in order.

        A gradient that has been posted in this step is extra.
        """
        if state in self._posted_gradients:
            self._extra.add(state)
            self.had_extra, self.agreed = True, False
            return ()
        group = self._group_of[state]
        missing = self._missing.get(group)
        if missing is None:
            missing = len(self.members(group))
        if state not in self._arrived:
            self._arrived.add(state)
            self._missing[group] = missing = missing - 1
        if missing:
            return ()
        self._last[group] = state
        if not self._in_order:
            return (group,)
        return [self._by_key[key] for key in self._order.offer(group.key)]

    def look(self, group: GradientGroup) -> bool:
        """Record the members of a group that have a gradient; return whether none is missing."""
        members = self.members(group)
        absent = [state for state in members if state.parameter.grad is None]
        self._arrived.update(members)
        self._arrived.difference_update(absent)
        self._missing[group] = len(absent)
        return not absent

    def members(self, group: GradientGroup) -> Sequence[ParameterState]:
        """Return the parameters of a group that take part in its reduction in this step.

        They are those that required gradients at the first call in the step.
        """
        found = self._members.get(group)
        if found is None:
            found = self._members[group] = group.members
            self._missing[group] = len(found)
        return found

    def group_of(self, state: ParameterState) -> GradientGroup:
        """Return the group in which a gradient is reduced."""
        return self._group_of[state]

    def last(self, group: GradientGroup) -> ParameterState | None:
        """Return the member whose gradient completed the group; None if it is not complete."""
        return self._last.get(group)

    def post(self, group: GradientGroup) -> None:
        """Record that a reduction of a group has been posted."""
        self._posted.add(group)
        self._posted_gradients.update(self.members(group))

    def posted(self, group: GradientGroup) -> bool:
        """Return whether a reduction of the group has been posted in this step."""
        return group in self._posted

    def gradient_posted(self, state: ParameterState) -> bool:
        """Return whether the gradient has been posted in this step."""
        return state in self._posted_gradients

    def missing(self) -> list[GradientGroup]:
        """Return the groups to post at the step's end: those that have members but no post yet."""
        return [each for each in self._groups if each not in self._posted and each.members]

    def take_extras(self, states: Iterable[ParameterState]) -> list[bool]:
        """Return for each gradient whether it is extra, for the agreement that now follows."""
        found = [state in self._extra for state in states]
        self._extra.clear()
        self.agreed = True
        return found

"""Finds out when the gradients of each group have come, with as few hooks as it takes.

At first each parameter has hooks. A group whose last gradient came from the same member for several
steps in a row keeps one hook, on that member; then a look at the others tells whether theirs are
there. The group gets all its hooks back before the first gradient of a backward pass that begins
otherwise than those steps did, and as soon as a gradient is missing. Long gradients keep a hook
that copies them.

    hooks on      in each step                              looked at
    each member   counts gradients                          never
    the last one  one backward, through the forward, that   when the last member's gradient has
                  finds every gradient of the group None    come, and when the backward has ended
"""

from collections.abc import Callable, Iterable

import torch

from slackline.overlap._gradient_group import GradientGroup
from slackline.overlap._hooks import ParameterHooks
from slackline.overlap._parameter_state import ParameterState, Phase

__all__ = ["STEADY_STEPS", "Arrivals"]

STEADY_STEPS = 8
"""So many steps in a row must end with the same member. A trial forms other groups before."""


class Arrivals:
    """The hooks of one optimizer's parameters. Used by one thread at a time."""

    def __init__(
        self, finish: Callable[[ParameterState], None], unnoticed: Callable[[int], None]
    ) -> None:
        """`finish` takes a parameter's step, if it is due.

        `unnoticed` is told the backward pass (the number of its graph task) that has brought
        gradients of a group without the last one.
        """
        self.watching = False
        """Whether gradients may have come of which no hook has told."""
        self._finish = finish
        self._unnoticed = unnoticed
        self._groups: list[GradientGroup] = []
        self._sparse: list[GradientGroup] = []
        """Those with one hook."""
        self._hooks: dict[int, ParameterHooks] = {}
        """By the number of the parameter."""
        self._armed = False
        """Whether hooks count gradients without a call of the reducer."""
        self._task = -1

    def add(self, states: Iterable[ParameterState]) -> None:
        """Place hooks on parameters."""
        for state in states:
            self._hooks[state.index] = hooks = ParameterHooks(state)
            hooks.place(before=True, on=True)

    def remove(self) -> None:
        """Remove all hooks."""
        for hooks in self._hooks.values():
            hooks.place(before=False, on=False)
        self._hooks.clear()
        self._groups, self._sparse = [], []

    def follow(self, groups: list[GradientGroup]) -> None:
        """Tell when these groups are whole from now on, with all hooks at first."""
        self.hook_each()
        self._groups = groups

    def arm(self) -> None:
        """Have the hooks count the gradients to come in this backward by themselves."""
        if not self._armed:
            self._armed = True
            for group in self._groups:
                if group.hooked_last is None:
                    group.arm()
            torch.autograd.Variable._execution_engine.queue_callback(self.disarm)

    def disarm(self) -> None:
        """Have the hooks report each gradient again."""
        if self._armed:
            self._armed = False
            for group in self._groups:
                group.disarm()

    def restart(self) -> None:
        """Begin another step: the groups have been restarted, or are about to be."""
        self._armed = self.watching = False

    def begin(self, task: int) -> None:
        """Prepare for the first gradient of a backward pass through the forward."""
        if not self._sparse:
            return
        local = Phase.LOCAL
        for group in self._sparse:
            for state in group.states:
                if state.due:
                    self._finish(state)
                if state.parameter.grad is not None or state.phase is not local:
                    self.hook_each()
                    return
        self.watching, self._task = True, task
        torch.autograd.Variable._execution_engine.queue_callback(self.look)

    def arrive(self, state: ParameterState) -> bool:
        """Note a gradient that a hook has told of; return whether its group is whole."""
        group = state.gradient_group
        if group.hooked_last is None:
            return group.arrive(state)
        whole = group.look()
        if not whole:
            self._hook_each(group)
        return whole

    def look(self) -> None:
        """Find the gradients that have come without a hook. Those of whole groups are known."""
        if not self.watching:
            return
        self.watching = False
        partly = [group for group in self._sparse if not group.posted and group.has_gradients()]
        for group in partly:
            group.look()
            self._hook_each(group)
        if partly:
            self._unnoticed(self._task)

    def observe(self, *, regular: bool) -> None:
        """Note at the end of a step which groups are whole, and leave out hooks accordingly.

        `regular`: one backward pass brought all gradients, and it came through the forward.
        """
        if not regular:
            self.hook_each()
        for group in self._groups:
            if regular and group.posted and group.last is group.usual:
                group.steady += 1
                if group.steady == STEADY_STEPS:
                    self._hook_last(group)
            else:
                if group.hooked_last is not None:
                    self._hook_each(group)
                group.usual, group.steady = (group.last if group.posted else None), 0

    def hook_each(self) -> None:
        """Place hooks on every parameter again."""
        self.watching = False
        for group in tuple(self._sparse):
            self._hook_each(group)

    def _hook_each(self, group: GradientGroup) -> None:
        group.hooked_last, group.steady = None, 0
        self._sparse.remove(group)
        for state in group.states:
            self._hooks[state.index].place(before=True, on=True)

    def _hook_last(self, group: GradientGroup) -> None:
        group.hooked_last = group.last
        self._sparse.append(group)
        for state in group.states:
            self._hooks[state.index].place(
                before=False, on=state is group.last or state.copied_at_once
            )

"""Detection of the moment when all gradients of a group have arrived, with few autograd hooks.

At first each parameter has hooks. A group whose final gradient came from the same parameter for
several steps in a row keeps one hook, on that parameter. When this hook runs, the group checks
whether the `grad` of every other member is set. The group gets all its hooks back as soon as a
gradient is missing, and before the first gradient of a backward pass whose starting state differs
from the starting state of those steps. Large gradients keep a hook that copies them.

    hooks on      required in each step                     the `grad` of members is checked
    each member   nothing: hooks count the gradients        never
    one member    one backward, through the forward, that   when that member's gradient has
                  finds every gradient of the group None    arrived, and at the backward's end
"""

from collections.abc import Callable, Iterable

import torch

from slackline.overlap.reduction._gradient_group import GradientGroup
from slackline.overlap.reduction._hooks import ParameterHooks
from slackline.overlap.reduction._parameter_state import ParameterState, Phase

__all__ = ["STEADY_STEPS", "Arrivals"]

STEADY_STEPS = 8
"""The number of consecutive steps with the same last member after which other hooks are removed.

A trial of group sizes forms other groups before the count gets that far.
"""


class Arrivals:
    """The autograd hooks of one optimizer's parameters; one thread at a time may use them."""

    def __init__(
        self, finish: Callable[[ParameterState], None], unnoticed: Callable[[int], None]
    ) -> None:
        """Create an object without hooks; `add` places them.

        `finish` takes the optimizer's pending step of a parameter. `unnoticed` is called with the
        number of autograd's graph task when a backward pass has produced some gradients of a group,
        but not the one that has a hook.
        """
        self.watching = False
        """True while gradients may have arrived that no hook has reported."""
        self._finish = finish
        self._unnoticed = unnoticed
        self._groups: list[GradientGroup] = []
        self._sparse: list[GradientGroup] = []
        """The groups of which only one member has a hook."""
        self._hooks: dict[int, ParameterHooks] = {}
        """The hooks of each parameter, by the parameter's number."""
        self._armed = False
        """True while hooks count gradients by themselves and do not call the reducer."""
        self._task = -1

    def add(self, states: Iterable[ParameterState]) -> None:
        """Place hooks on these parameters."""
        for state in states:
            self._hooks[state.index] = hooks = ParameterHooks(state)
            hooks.place(before=True, on=True)

    def remove(self) -> None:
        """Remove the hooks of all parameters."""
        for hooks in self._hooks.values():
            hooks.place(before=False, on=False)
        self._hooks.clear()
        self._groups, self._sparse = [], []

    def follow(self, groups: list[GradientGroup]) -> None:
        """Watch these gradient groups from now on, with hooks on every parameter at first."""
        self.hook_each()
        self._groups = groups

    def arm(self) -> None:
        """Let the hooks count the rest of this backward's gradients without calling the reducer."""
        if not self._armed:
            self._armed = True
            for group in self._groups:
                if group.hooked_last is None:
                    group.arm()
            torch.autograd.Variable._execution_engine.queue_callback(self.disarm)

    def disarm(self) -> None:
        """Let the hooks report each gradient to the reducer again."""
        if self._armed:
            self._armed = False
            for group in self._groups:
                group.disarm()

    def restart(self) -> None:
        """Prepare for the next training step; the caller also restarts each gradient group."""
        self._armed = self.watching = False

    def begin(self, task: int) -> None:
        """Prepare for the backward pass of a forward pass that was made through the wrapper.

        The caller calls this method before autograd computes the first parameter's gradient.
        `task` is the number of autograd's graph task. If a gradient group with only one hook does
        not start from empty gradients, every parameter gets its hooks back.
        """
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
        """Record a gradient that a hook reported; return whether its gradient group is complete."""
        group = state.gradient_group
        if group.hooked_last is None:
            return group.arrive(state)
        whole = group.look()
        if not whole:
            self._hook_each(group)
        return whole

    def look(self) -> None:
        """Find groups for which only some gradients have arrived, without a report by a hook.

        These groups get all their hooks back. Groups with all gradients are posted already.
        """
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
        """Record at a step's end which gradient groups were complete, and remove needless hooks.

        `regular` is true if one backward pass, through the wrapper's forward, gave all gradients.
        """
        if not regular:
            self.hook_each()
        for group in self._groups:
            if regular and group.complete and group.last is group.usual:
                group.steady += 1
                if group.steady == STEADY_STEPS:
                    self._hook_last(group)
            else:
                if group.hooked_last is not None:
                    self._hook_each(group)
                group.usual, group.steady = (group.last if group.complete else None), 0

    def hook_each(self) -> None:
        """Place hooks on every parameter again, if some have been removed."""
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

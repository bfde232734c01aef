"""Autograd's hooks on one optimizer's parameters, which are as few as the program allows.

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

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from slackline.overlap.reduction._gradient_group import GradientGroup
from slackline.overlap.reduction._gradient_step import GradientStep
from slackline.overlap.reduction._parameter_state import ParameterState, Phase

__all__ = ["STEADY_STEPS", "Hooks"]

STEADY_STEPS = 8
"""The number of consecutive steps with the same last member after which other hooks are removed.

A trial of group sizes forms other groups before the count gets that far.
"""


class Listener(Protocol):
    """The object that the hooks of a parameter tell of its gradients."""

    def before_gradient(self, state: ParameterState) -> None:
        """Prepare for an addition to the parameter's `grad`."""

    def gradient_arrived(self, state: ParameterState) -> None:
        """Use a gradient that autograd has added to the parameter's `grad`."""


class Hooks:
    """The autograd hooks of one optimizer's parameters; one thread at a time may use them."""

    def __init__(self, listener: Listener) -> None:
        """Create an object without hooks; `add` places them. `listener` is not kept alive."""
        self.watching = False
        """True while gradients may have arrived that no hook has reported."""
        self.task = -1
        """The number of autograd's graph task of the latest backward that `begin` was told of."""
        self._listener = weakref.ref(listener)
        self._groups: Sequence[GradientGroup] = ()
        self._of: dict[ParameterState, _ParameterHooks] = {}
        self.alone: dict[GradientGroup, ParameterState] = {}
        """The only member with a hook, for each group of which only one member has a hook."""
        self._usual: dict[GradientGroup, tuple[ParameterState, int]] = {}
        """The member whose gradient completed the group in the latest steps, and their number."""

    def add(self, states: Iterable[ParameterState]) -> None:
        """Place hooks on these parameters."""
        for state in states:
            self._of[state] = hooks = _ParameterHooks(state, self._listener)
            hooks.place(before=True, after=True)

    def remove(self) -> None:
        """Remove the hooks of all parameters."""
        for hooks in self._of.values():
            hooks.place(before=False, after=False)
        self.watching = False
        self._groups = ()
        self._of.clear()
        self.alone.clear()
        self._usual.clear()

    def follow(self, groups: Sequence[GradientGroup]) -> None:
        """Watch these gradient groups from now on, with hooks on every parameter at first."""
        self.hook_each()
        self._groups = tuple(groups)
        self._usual.clear()

    def restart(self) -> None:
        """Prepare for the next training step."""
        self.watching = False

    def with_one_hook(self) -> Iterator[ParameterState]:
        """Return the members of groups of which only one member has a hook."""
        return (state for group in self.alone for state in group.states)

    def begin(self, task: int) -> bool:
        """Prepare for the backward pass of a forward pass that was made through the wrapper.

        The caller calls this method before autograd computes the first parameter's gradient, and
        `look` at the end of the backward if the result is true. `task` is the number of autograd's
        graph task. If a group with only one hook does not start from empty gradients, every
        parameter gets its hooks back.
        """
        local = Phase.LOCAL
        for state in self.with_one_hook():
            if state.parameter.grad is not None or state.phase is not local:
                self.hook_each()
                return False
        self.watching, self.task = bool(self.alone), task
        return self.watching

    def check(self, state: ParameterState, step: GradientStep) -> None:
        """Look at the other members if `state`, whose gradient has come, is the only one hooked.

        If a gradient is missing, the group gets all its hooks back.
        """
        group = step.group_of(state)
        if group in self.alone and not step.look(group):
            self._hook_each(group)

    def look(self, step: GradientStep) -> bool:
        """Find groups for which only some gradients have arrived, without a report by a hook.

        These groups get all their hooks back. Groups with all gradients are posted already. Returns
        whether there are such groups.
        """
        if not self.watching:
            return False
        self.watching = False
        partly = [g for g in self.alone if not step.posted(g) and g.has_gradients()]
        for group in partly:
            step.look(group)
            self._hook_each(group)
        return bool(partly)

    def observe(self, step: GradientStep, *, regular: bool) -> None:
        """Record at a step's end which gradient groups were complete, and remove needless hooks.

        `regular` is true if one backward pass, through the wrapper's forward, gave all gradients.
        """
        if not regular:
            self.hook_each()
        for group in self._groups:
            last = step.last(group)
            usual, steady = self._usual.get(group, (None, 0))
            if regular and last is not None and last is usual:
                self._usual[group] = last, steady + 1
                if steady + 1 == STEADY_STEPS:
                    self._hook_last(group, last)
            else:
                if group in self.alone:
                    self._hook_each(group)
                self._usual.pop(group, None)
                if last is not None:
                    self._usual[group] = last, 0

    def hook_each(self) -> None:
        """Place hooks on every parameter again, if some have been removed."""
        self.watching = False
        for group in tuple(self.alone):
            self._hook_each(group)

    def _hook_each(self, group: GradientGroup) -> None:
        del self.alone[group]
        usual = self._usual.get(group)
        if usual is not None:
            self._usual[group] = usual[0], 0
        for state in group.states:
            self._of[state].place(before=True, after=True)

    def _hook_last(self, group: GradientGroup, last: ParameterState) -> None:
        self.alone[group] = last
        for state in group.states:
            self._of[state].place(
                before=False, after=state is last, copy=state is not last and state.copied_at_once
            )


class _ParameterHooks:
    """The two autograd hooks of one parameter; either may be absent.

    They run once for each parameter and backward pass, so they do little work.
    """

    def __init__(self, state: ParameterState, listener: "weakref.ref[Listener]") -> None:
        self.state = state
        self.listener = listener
        self.tells = True
        """False: the hook after accumulation only copies the gradient."""
        # Python's garbage collector cannot see cycles that lead through autograd.
        self._before = _before(weakref.ref(self))
        self._after = _after(weakref.ref(self))
        self._before_handle: RemovableHandle | None = None
        self._after_handle: RemovableHandle | None = None

    def place(self, *, before: bool, after: bool, copy: bool = False) -> None:
        """Register or remove the autograd hooks before and after accumulation of the gradient.

        `before` and `after` tell whether the listener shall be told; with `copy` in place of
        `after`, a gradient is only copied to its buffer. A hook that stays keeps its place among
        the program's own hooks.
        """
        parameter: Any = self.state.parameter
        frozen = not parameter.requires_grad
        if frozen:  # torch refuses hooks on frozen parameters, but the user may unfreeze them
            parameter.requires_grad_(True)
        self.tells = after
        self._place(parameter, before=before, after=after or copy)
        if frozen:
            parameter.requires_grad_(False)

    def _place(self, parameter: Any, *, before: bool, after: bool) -> None:
        if before and self._before_handle is None:
            self._before_handle = parameter.register_hook(self._before)
        elif not before and self._before_handle is not None:
            self._before_handle.remove()
            self._before_handle = None
            # Autograd wraps each gradient for hooks, at a cost, even if this dict is empty.
            if not parameter._backward_hooks:
                parameter._backward_hooks = None
        if after and self._after_handle is None:
            self._after_handle = parameter.register_post_accumulate_grad_hook(self._after)
        elif not after and self._after_handle is not None:
            self._after_handle.remove()
            self._after_handle = None
            if not parameter._post_accumulate_grad_hooks:
                parameter._post_accumulate_grad_hooks = None


def _before(of_hooks: "weakref.ref[_ParameterHooks]") -> Callable[[Tensor], None]:
    """Return the hook that autograd calls before it adds a gradient to the parameter's `grad`."""

    def before(_: Tensor) -> None:
        hooks = of_hooks()
        if hooks is not None:
            listener = hooks.listener()
            if listener is not None:
                listener.before_gradient(hooks.state)

    return before


def _after(of_hooks: "weakref.ref[_ParameterHooks]") -> Callable[[Tensor], None]:
    """Return the hook that autograd calls after it has accumulated the parameter's gradient."""

    def after(_: Tensor) -> None:
        hooks = of_hooks()
        if hooks is None:
            return
        state = hooks.state
        if state.copied_at_once:
            state.copy()
        if hooks.tells:
            listener = hooks.listener()
            if listener is not None:
                listener.gradient_arrived(state)

    return after

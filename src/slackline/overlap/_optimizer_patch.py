"""Replacement of an optimizer's `step` and `zero_grad` by methods that do not block.

The optimizer object and its class stay the user's own. Only methods of this one instance are
replaced, so learning rate schedulers, gradient scalers and checkpoints work as before. `release`
restores the methods.
"""

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer
from torch.utils.hooks import RemovableHandle

from slackline.errors import UsageError
from slackline.overlap._choice import Choice, StepFacts, choose, steps_alone
from slackline.overlap._partial_step import raw_groups
from slackline.overlap._recorder import Recorder
from slackline.overlap.reduction import GradientReducer, LazyGroup, ReadTracker, clear_grad

__all__ = ["OptimizerPatch"]

_KEPT = "slackline_groups"
"""The entry of the optimizer's state dict that saves the groups; torch ignores the entry."""
_METHODS = ("step", "zero_grad", "add_param_group", "__getstate__")


class OptimizerPatch:
    """The replacement of one optimizer's methods by methods that do not block.

    `step` marks the step as pending where that is possible, and `zero_grad` clears gradients after
    the steps that need them.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        reducer: GradientReducer,
        tracker: ReadTracker,
        recorder: Recorder,
        adopt: Callable[[], None],
    ) -> None:
        """Replace the optimizer's methods and make its parameter groups lazy.

        `recorder` receives the times of the optimizer's step. `adopt` creates states for parameters
        that were added or have become trainable.
        """
        self.choice: Choice | None = None
        """The way in which the latest step was taken, with the reason; None before the first."""
        self._optimizer = optimizer
        self._reducer = reducer
        self._tracker = tracker
        self._recorder = recorder
        self._closures_ns = 0
        """The time that closures have taken within the present step."""
        self._adopt = adopt
        self._own = {name: vars(optimizer)[name] for name in _METHODS if name in vars(optimizer)}
        self._step: Callable[..., Any] = optimizer.step
        foreign = "step" in self._own and not hasattr(optimizer.step, "_wrapped_by_lr_sched")
        self._alone = steps_alone(type(optimizer)) and not foreign
        self._make_groups_lazy()
        self._replace()
        self._handles: list[RemovableHandle] = [
            optimizer.register_state_dict_pre_hook(lambda _: self._settle()),
            optimizer.register_state_dict_post_hook(lambda _, state: self._save(state)),
            optimizer.register_load_state_dict_pre_hook(lambda _, state: self._load(state)),
            optimizer.register_load_state_dict_post_hook(lambda _: self._make_groups_lazy()),
        ]

    def release(self) -> None:
        """Restore the optimizer's own methods and parameter groups."""
        optimizer: Any = self._optimizer
        for name in _METHODS:
            delattr(optimizer, name)
        vars(optimizer).update(self._own)
        for handle in self._handles:
            handle.remove()
        optimizer.param_groups[:] = [
            group.plain() if isinstance(group, LazyGroup) else group
            for group in optimizer.param_groups
        ]

    def _replace(self) -> None:
        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            return self._take_step(*args, **kwargs)

        def zero_grad(optimizer: Optimizer, set_to_none: bool = True) -> None:
            self.zero_grad(set_to_none)

        def add_param_group(optimizer: Optimizer, param_group: dict[str, Any]) -> None:
            type(optimizer).add_param_group(optimizer, param_group)
            self._make_groups_lazy()
            self._adopt()

        def __getstate__(optimizer: Optimizer) -> Any:  # noqa: N807  # copy and pickle call it
            self._settle()
            return type(optimizer).__getstate__(optimizer)

        # An earlier scheduler checks that `step` has this mark; a later one does not wrap it again.
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        for method in (step, zero_grad, add_param_group, __getstate__):
            setattr(self._optimizer, method.__name__, MethodType(method, self._optimizer))

    def _take_step(self, *args: Any, **kwargs: Any) -> Any:
        optimizer: Any = self._optimizer
        optimizer._opt_called = True
        self._recorder.step_called()
        self._adopt()
        self.choice = choose(self._facts(bool(args) or bool(kwargs)))
        if self.choice.deferred:
            self._reducer.defer_step()
            return None
        closure = args[0] if args else kwargs.get("closure")
        self._reducer.finish_all()
        if callable(closure):
            args, kwargs = (self._reducing(closure), *args[1:]), {**kwargs}
            kwargs.pop("closure", None)
        else:
            self._reducer.reduce_all()
        clock, self._closures_ns = self._recorder.clock, 0
        began = clock()
        result = self._step(*args, **kwargs)
        self._recorder.updated(clock() - began - self._closures_ns)
        self._reducer.step_taken()
        return result

    def _settle(self) -> None:
        """Finish all pending steps, and sort the optimizer's state by parameter before it is saved.

        Otherwise the saved state would be in the order of the first updates, which differs from run
        to run.
        """
        self._reducer.finish_all()
        state = self._optimizer.state
        for _, parameters in raw_groups(self._optimizer):
            for parameter in parameters:
                if parameter in state:
                    state[parameter] = state.pop(parameter)

    def _save(self, state: dict[str, Any]) -> None:
        """Add the gradient groups to a saved state dict.

        Skip them if a resumed run computes bit-identical sums without them.
        """
        if self._reducer.kept is not None:
            state[_KEPT] = self._reducer.kept

    def _load(self, state: dict[str, Any]) -> None:
        """Finish all pending steps, then use the gradient groups of a loaded state dict, if any.

        Raises UsageError if the state dict's entry has another form.
        """
        self._reducer.finish_all()
        kept = state.get(_KEPT)
        if kept is None:
            return
        if not _is_kept(kept):
            text = f"{_KEPT} in an optimizer's state must be what state_dict() gave, not {kept!r}"
            raise UsageError(text)
        self._reducer.keep(kept)

    def _facts(self, given: bool) -> StepFacts:
        optimizer: Any = self._optimizer
        hooks = (
            optimizer._optimizer_step_pre_hooks,
            optimizer._optimizer_step_post_hooks,
            torch_optimizer._global_optimizer_pre_hooks,
            torch_optimizer._global_optimizer_post_hooks,
        )
        scale = (getattr(optimizer, name, None) for name in ("grad_scale", "found_inf"))
        return StepFacts(
            alone=self._alone,
            arguments=given,
            hooks=any(hooks),
            scaled=any(value is not None for value in scale),
            differentiable=bool(optimizer.defaults.get("differentiable", False)),
            reduced=self._reducer.reduced,
            steps_together=not self._reducer.tuning.variant.deferred,
        )

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        clock = self._recorder.clock

        def reducing() -> Any:
            began = clock()
            with torch.enable_grad():
                loss = closure()
            self._reducer.post_missing()
            self._reducer.wait_reduced()
            self._reducer.reset_step()
            self._closures_ns += clock() - began
            return loss

        return reducing

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients; a gradient that a pending step needs is cleared after that step."""
        self._reducer.clear(set_to_none=set_to_none)
        for group in self._optimizer.param_groups:
            for parameter in dict.__getitem__(group, "params"):
                if id(parameter) not in self._tracker.owners:
                    clear_grad(parameter, set_to_none=set_to_none)

    def _make_groups_lazy(self) -> None:
        groups = self._optimizer.param_groups
        for index, group in enumerate(groups):
            if not isinstance(group, LazyGroup):
                groups[index] = LazyGroup(group, self._tracker)


def _is_kept(value: object) -> bool:
    """Return whether a value from a state dict has the form of saved gradient groups."""
    if not isinstance(value, dict) or sorted(map(str, value)) != ["bytes", "order"]:
        return False
    size, order = value["bytes"], value["order"]
    return (size is None or (isinstance(size, int) and size >= 0)) and (
        order is None or (isinstance(order, list) and all(isinstance(each, int) for each in order))
    )

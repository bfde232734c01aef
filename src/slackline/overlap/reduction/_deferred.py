"""Optimizer steps that the user has called and that some parameters have not yet taken.

Parameters whose gradients are reduced together are updated together, in one optimizer call.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer

from slackline.overlap._partial_step import Settings, partial_step, settings_of
from slackline.overlap._recorder import Recorder
from slackline.overlap.reduction._gradient_group import GradientGroup
from slackline.overlap.reduction._parameter_state import Clear, ParameterState, Phase
from slackline.overlap.reduction._watched_parameters import kept_elsewhere

__all__ = ["DeferredSteps"]


class DeferredSteps:
    """The parameters of one optimizer whose update by the latest step is still pending."""

    def __init__(self, optimizer: Optimizer, recorder: Recorder) -> None:
        self._optimizer = optimizer
        self._recorder = recorder
        self._settings: Settings = ()
        self._batches: dict[GradientGroup | None, list[ParameterState]] = {}
        """The waiting parameters by the reduction that they wait for; None: they need not wait."""

    def __bool__(self) -> bool:
        """Return whether the optimizer step of some parameter is pending."""
        return bool(self._batches)

    def defer(self, states: Iterable[ParameterState]) -> None:
        """Mark a step as pending for each parameter that has a gradient.

        The optimizer's present settings, such as the learning rate, are copied for that step.
        """
        assert not self._batches
        self._settings = settings_of(self._optimizer)
        batches, posted = self._batches, Phase.POSTED
        with torch._C.DisableTorchFunctionSubclass():  # parameters may be watched already
            for state in states:
                if state.phase is not posted:
                    state.grad = state.parameter.grad
                    if state.grad is None:
                        continue
                state.due = True
                state.watch()
                batch = batches.get(state.posting)
                if batch is None:
                    batch = batches[state.posting] = []
                state.batch = batch
                batch.append(state)

    def first(self) -> ParameterState:
        """Return the parameter whose optimizer step has been pending for the longest time."""
        return next(iter(self._batches.values()))[0]

    def take(self, state: ParameterState, companions: Iterable[ParameterState] = ()) -> None:
        """Update a parameter whose gradient is reduced, and all parameters of the same reduction.

        The parameters in `companions` whose gradients are reduced are updated in the same optimizer
        call.
        """
        ready = {id(state.batch): state.batch}
        for other in companions:
            if other.due and other.done():
                ready[id(other.batch)] = other.batch
        chosen = [key for key, batch in self._batches.items() if id(batch) in ready]
        self._run(chosen)

    def kept_elsewhere(self) -> list[ParameterState]:
        """Return the pending parameters that can be read without notice (see `kept_elsewhere`)."""
        with torch._C.DisableTorchFunctionSubclass():
            return kept_elsewhere(self._states(self._batches))

    def sweep(self) -> None:
        """Take all pending optimizer steps whose gradients are reduced; do not block."""
        self._run([group for group in self._batches if group is None or group.done()])

    def drop(self) -> None:
        """Discard all pending optimizer steps without taking them."""
        for state in self._states(self._batches):
            state.due = False
            state.unwatch()
        self._batches.clear()

    def _states(self, groups: Iterable[GradientGroup | None]) -> Iterator[ParameterState]:
        for group in groups:
            yield from self._batches[group]

    def _run(self, groups: list[GradientGroup | None]) -> None:
        if not groups:
            return
        for group in groups:
            if group is not None:
                group.wait()
        ready = list(self._states(groups))
        chosen: defaultdict[int, list[Tensor]] = defaultdict(list)
        for state in ready:
            state.unwatch()
            parameter, grad = state.parameter, state.grad
            if parameter.grad is not grad:
                parameter.grad = grad
            if grad is not None:
                chosen[state.group].append(parameter)
        began = self._recorder.clock()
        try:
            partial_step(self._optimizer, self._settings, chosen)
        except BaseException:
            for state in ready:  # their steps are still pending
                state.watch()
            raise
        self._recorder.updated(self._recorder.clock() - began)
        no = Clear.NO
        for state in ready:
            state.due = False
            if state.clear_later is not no:
                state.clear_gradient(state.clear_later)
        for group in groups:
            del self._batches[group]

"""Optimizer steps that the user has called and that some parameters have not yet taken.

Parameters whose gradients are reduced together are updated together, in one optimizer call.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from slackline.overlap._partial_step import Settings, partial_step, settings_of
from slackline.overlap._recorder import Recorder
from slackline.overlap.reduction._gradient_group import Posting
from slackline.overlap.reduction._parameter_state import ParameterState
from slackline.overlap.reduction._reductions import Reductions
from slackline.overlap.reduction._watched_parameters import WatchedParameters

__all__ = ["PendingUpdates"]


class PendingUpdates:
    """The parameters of one optimizer whose update by the latest step is still pending.

    They are watched until they are updated.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        reductions: Reductions,
        watched: WatchedParameters,
        recorder: Recorder,
    ) -> None:
        """Create an object without pending updates.

        `reductions` holds the reductions that updates wait for. `recorder` receives the times of
        the optimizer's code.
        """
        self._optimizer = optimizer
        self._reductions = reductions
        self._watched = watched
        self._recorder = recorder
        self._settings: Settings = ()
        self._batches: dict[Posting | None, list[ParameterState]] = {}
        """The waiting parameters by the reduction that they wait for; None: they need not wait."""
        self.waits_for: dict[ParameterState, Posting | None] = {}
        """The reduction that each pending parameter waits for; None: it need not wait."""
        self._clears: dict[ParameterState, bool] = {}
        """The gradients to clear after their update; True: set to None, False: fill with zeros."""

    def __bool__(self) -> bool:
        """Return whether the update of some parameter is pending."""
        return bool(self._batches)

    def __contains__(self, state: ParameterState) -> bool:
        """Return whether the update of this parameter is pending."""
        return state in self.waits_for

    def defer(self, states: Iterable[ParameterState]) -> None:
        """Mark an update as pending for each parameter that has a gradient.

        The optimizer's present settings, such as the learning rate, are copied for that step.
        """
        assert not self._batches
        self._settings = settings_of(self._optimizer)
        batches, waits_for = self._batches, self.waits_for
        reduction_of = self._reductions.of
        with torch._C.DisableTorchFunctionSubclass():  # parameters may be watched already
            for state in states:
                posting = reduction_of(state)
                if posting is None:
                    state.grad = state.parameter.grad
                    if state.grad is None:
                        continue
                batch = batches.get(posting)
                if batch is None:
                    batch = batches[posting] = []
                batch.append(state)
                waits_for[state] = posting
            self._watched.watch(state.parameter for state in waits_for)

    def first(self) -> ParameterState:
        """Return the parameter whose update has been pending for the longest time."""
        return next(iter(self._batches.values()))[0]

    def take(self, state: ParameterState, companions: Iterable[ParameterState] = ()) -> None:
        """Update a parameter whose gradient is reduced, and all parameters of the same reduction.

        The parameters in `companions` whose gradients are reduced are updated in the same optimizer
        call.
        """
        ready = {self.waits_for[state]}
        for other in companions:
            if other in self.waits_for:
                posting = self.waits_for[other]
                if posting is None or posting.done():
                    ready.add(posting)
        self._run([posting for posting in self._batches if posting in ready])

    def sweep(self) -> None:
        """Make all pending updates whose gradients are reduced; do not block."""
        self._run([posting for posting in self._batches if posting is None or posting.done()])

    def clear_later(self, *, set_to_none: bool) -> None:
        """Clear each pending parameter's gradient after its update, which needs the gradient.

        A gradient that is to be None is hidden at once. Reads must not be reported meanwhile.
        """
        if not set_to_none:
            for state in self.waits_for:
                self._clears.setdefault(state, False)
            return
        for state in self.waits_for:
            state.parameter.grad = None
        self._clears = dict.fromkeys(self.waits_for, True)

    def drop(self) -> None:
        """Discard all pending updates without making them."""
        self._watched.unwatch(state.parameter for state in self.waits_for)
        self._batches.clear()
        self.waits_for.clear()
        self._clears.clear()

    def kept_elsewhere(self) -> list[ParameterState]:
        """Return the pending parameters that can be read without notice, and so are not watched."""
        with torch._C.DisableTorchFunctionSubclass():
            return self._watched.kept_elsewhere(self.waits_for)

    def _run(self, postings: list[Posting | None]) -> None:
        if not postings:
            return
        for posting in postings:
            if posting is not None:
                self._reductions.end(posting, show=False)
        ready = [state for posting in postings for state in self._batches[posting]]
        chosen: defaultdict[int, list[Tensor]] = defaultdict(list)
        self._watched.unwatch(state.parameter for state in ready)
        for state in ready:
            parameter, grad = state.parameter, state.grad
            if parameter.grad is not grad:
                parameter.grad = grad
            if grad is not None:
                chosen[state.group].append(parameter)
        began = self._recorder.clock()
        try:
            partial_step(self._optimizer, self._settings, chosen)
        except BaseException:
            # Their updates are still pending.
            self._watched.watch(state.parameter for state in ready)
            raise
        self._recorder.updated(self._recorder.clock() - began)
        for state in ready:
            del self.waits_for[state]
        for posting in postings:
            del self._batches[posting]
        if self._clears:
            for state in ready:
                how = self._clears.pop(state, None)
                if how is not None:
                    state.clear_gradient(set_to_none=how)

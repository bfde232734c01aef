"""Tracks the reads of a model's parameters: each read waits for what it needs, and no longer."""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from slackline.overlap._lazy_parameters import LazyParameters
from slackline.overlap._parameter_state import ParameterState

if TYPE_CHECKING:
    from slackline.overlap._gradient_reducer import GradientReducer

__all__ = ["ReadTracker"]


class ReadTracker:
    """Finishes the steps and reductions that a read needs; records the order of first use."""

    def __init__(self) -> None:
        self.busy = True
        self._synchronize = True
        self.reducers: list[GradientReducer] = []
        self.owners: dict[int, tuple[GradientReducer, ParameterState]] = {}
        """By the parameter's id."""
        self.backwards = 0
        """Backward passes so far that came through what the wrapper's forward gave."""
        self._task = -1
        self._depth = 0
        self._seen: dict[int, int] | None = {}

    @property
    def synchronize(self) -> bool:
        """False within `no_sync`: gradients stay this rank's own."""
        return self._synchronize

    @synchronize.setter
    def synchronize(self, value: bool) -> None:
        self._synchronize = value
        for reducer in self.reducers:
            reducer.hook_each()

    def read(self, parameter: nn.Parameter, siblings: LazyParameters) -> None:
        """Finish a parameter's step before it is read; outside a forward also its reduction.

        A rank never waits for a gradient that other ranks may not post: see `needs_agreement`.
        """
        owner = self.owners.get(id(parameter))
        if owner is None:
            return
        self._note(parameter)
        reducer, state = owner
        if state.due:
            reducer.finish(state, self._states(reducer, siblings.peek()))
        elif not self._computing() and reducer.open and not reducer.needs_agreement:
            reducer.wait_reduced([state])

    def read_all(self, parameters: Iterator[Tensor]) -> None:
        for parameter in parameters:
            owner = self.owners.get(id(parameter))
            if owner is not None:
                reducer, state = owner
                if state.due:
                    reducer.finish(state)
                if not self._computing() and reducer.open:
                    reducer.wait_reduced([state])

    def use(self, parameters: Sequence[nn.Parameter]) -> None:
        """Finish the steps of parameters that a forward uses without looking them up."""
        for parameter in parameters:
            owner = self.owners.get(id(parameter))
            if owner is not None:
                self._note(parameter)
                reducer, state = owner
                if state.due:
                    reducer.finish(state)

    def refresh(self) -> None:
        """Update `busy`: whether a read may have anything to wait for."""
        self.busy = self._seen is not None or any(reducer.busy for reducer in self.reducers)

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Mark a forward of the model; the first one with gradients sets the priorities."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
        if self._seen and not self._depth and torch.is_grad_enabled():
            last = len(self._seen)
            for key, (_, state) in self.owners.items():
                state.priority = self._seen.get(key, last)
            self._seen = None
            self.refresh()

    def count_backwards(self, outputs: Any) -> None:
        """Have each backward pass counted that reaches any of the tensors in `outputs`.

        Nested backward passes, as of reentrant checkpoints, do not reach them.
        """
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(_Count(self))  # type: ignore[no-untyped-call]

    def count(self) -> None:
        """Count the backward pass that runs, once."""
        task: int = torch._C._current_graph_task_id()
        if self.synchronize and task != self._task:
            self._task = task
            self.backwards += 1
            for reducer in self.reducers:
                reducer.begin_backward(task)

    def _note(self, parameter: nn.Parameter) -> None:
        if self._seen is not None and self._depth:
            self._seen.setdefault(id(parameter), len(self._seen))

    def _computing(self) -> bool:
        return self._depth > 0 or torch._C._current_graph_task_id() != -1

    def _states(
        self, reducer: "GradientReducer", parameters: Iterator[nn.Parameter]
    ) -> Iterator[ParameterState]:
        for parameter in parameters:
            owner = self.owners.get(id(parameter))
            if owner is not None and owner[0] is reducer:
                yield owner[1]


class _Count:
    """Counts backward passes, as a hook of an output.

    It holds a weak reference: Python's collector cannot see cycles through autograd.
    """

    def __init__(self, tracker: ReadTracker) -> None:
        self._tracker = weakref.ref(tracker)

    def __call__(self, _: Tensor) -> None:
        tracker = self._tracker()
        if tracker is not None:
            tracker.count()

"""Tracking of a model's parameter reads; each read waits only for the values that it needs."""

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from slackline.errors import UsageError
from slackline.overlap.reduction._compiled_autograd import refuse_compiled_autograd
from slackline.overlap.reduction._gradient_reducer import GradientReducer
from slackline.overlap.reduction._lazy_parameters import LazyParameters
from slackline.overlap.reduction._model_state import ModelState
from slackline.overlap.reduction._parameter_state import ParameterState
from slackline.overlap.reduction._watched_parameters import WatchedParameters

__all__ = ["ReadTracker"]


class ReadTracker:
    """The object that a model's lazy parameters notify of each read.

    Each read finishes the pending steps and reductions that it needs. The order of the first reads
    in a forward sets the priorities of the reductions.
    """

    def __init__(self) -> None:
        self.model = ModelState(WatchedParameters(self._report))
        self.reducers: list[GradientReducer] = []
        self.owners: dict[int, tuple[GradientReducer, ParameterState]] = {}
        """The reducer and the state of each parameter, by the parameter's `id`."""
        self._task = -1
        self._depth = 0
        self._thread: threading.Thread | None = None
        self._seen: dict[int, int] | None = {}
        self.model.set_busy(self, True)

    @property
    def synchronize(self) -> bool:
        """True if gradients are reduced; False within `no_sync`."""
        return self.model.synchronize

    @synchronize.setter
    def synchronize(self, value: bool) -> None:
        self.model.synchronize = value
        for reducer in self.reducers:
            reducer.hook_each()

    def read(self, parameter: nn.Parameter, siblings: LazyParameters) -> None:
        """Finish a parameter's pending optimizer step before a read; block if need be.

        Outside forward and backward, also wait for the gradient's reduction, unless other ranks may
        not have posted it (see `GradientReducer.needs_agreement`).
        """
        owner = self.owners.get(id(parameter))
        if owner is None:
            return
        if self._seen is not None:
            self._note(parameter)
        reducer, state = owner
        if reducer.pending(state):
            reducer.finish(state, self._states(reducer, siblings.peek()))
        elif not self._depth and not self._computing() and reducer.open:
            if reducer.needs_agreement:
                self.model.watched.unwatch((state.parameter,))
            else:
                reducer.wait_reduced([state])

    def read_all(self, parameters: Iterator[Tensor]) -> None:
        for parameter in parameters:
            owner = self.owners.get(id(parameter))
            if owner is not None:
                reducer, state = owner
                if reducer.pending(state):
                    reducer.finish(state)
                if not self._computing() and reducer.open:
                    reducer.wait_reduced([state])

    def use(self, parameters: Sequence[nn.Parameter]) -> None:
        """Finish pending optimizer steps of parameters that a forward reads without a lookup."""
        for parameter in parameters:
            owner = self.owners.get(id(parameter))
            if owner is not None:
                self._note(parameter)
                reducer, state = owner
                if reducer.pending(state):
                    reducer.finish(state)
                # Compiled code depends on the class of the parameter.
                self.model.watched.unwatch((state.parameter,))

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Mark a forward of the model while the context lasts.

        The order of reads in the first forward with gradients sets the reductions' priorities.
        """
        self._depth += 1
        self._thread = threading.current_thread()
        watching = [reducer for reducer in self.reducers if reducer.unwatch()]
        try:
            yield
        finally:
            self._depth -= 1
            for reducer in watching:
                reducer.watch()
        if self._seen and not self._depth and torch.is_grad_enabled():
            last = len(self._seen)
            for key, (_, state) in self.owners.items():
                state.priority = self._seen.get(key, last)
            self._seen = None
            self.model.set_busy(self, False)

    def count_backwards(self, outputs: Any) -> None:
        """Register hooks that count each backward pass that reaches a tensor in `outputs`.

        Nested backward passes, such as those of reentrant checkpoints, do not reach the outputs.
        """
        for output in tree_leaves(outputs):
            if isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(_Count(self))  # type: ignore[no-untyped-call]

    def count(self) -> None:
        """Count the running backward pass, once however many outputs it reaches."""
        refuse_compiled_autograd()
        task: int = torch._C._current_graph_task_id()
        if self.synchronize and task != self._task:
            self._task = task
            self.model.backwards += 1
            for reducer in self.reducers:
                reducer.begin_backward(task)
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)

    def _backward_ended(self) -> None:
        for reducer in self.reducers:
            reducer.watch()

    def _report(self, parameter: Tensor, gradient: bool) -> None:
        """Handle the read of a parameter object, or of its gradient, without a lookup."""
        owner = self.owners.get(id(parameter))
        if owner is None:
            return
        reducer, state = owner
        if reducer.pending(state):
            self._check_thread(state.name)
            reducer.finish(state)
        if gradient and reducer.open and not self._computing():
            self._check_thread(state.name)
            if reducer.needs_agreement:
                raise UsageError(
                    f"the gradient of {state.name!r} is not reduced yet after several backward "
                    "passes: call synchronize() on all ranks before reading a list of parameters "
                    "that was made earlier"
                )
            reducer.wait_reduced([state])

    def _check_thread(self, name: str) -> None:
        """Raise UsageError if another thread than the one that takes the steps reads `name`."""
        mine = threading.current_thread()
        thread = self._thread
        if thread is None or thread is mine or not thread.is_alive():
            return
        if torch._C._current_graph_task_id() == -1:
            raise UsageError(
                f"parameter {name!r} was read in thread {mine.name!r} while its update was "
                f"pending in thread {thread.name!r}, which must call synchronize() before"
            )

    def _note(self, parameter: nn.Parameter) -> None:
        if self._seen is not None and self._depth:
            self._seen.setdefault(id(parameter), len(self._seen))

    def _computing(self) -> bool:
        return self._depth > 0 or torch._C._current_graph_task_id() != -1

    def _states(
        self, reducer: GradientReducer, parameters: Iterator[nn.Parameter]
    ) -> Iterator[ParameterState]:
        for parameter in parameters:
            owner = self.owners.get(id(parameter))
            if owner is not None and owner[0] is reducer:
                yield owner[1]


class _Count:
    """A hook of an output tensor that counts backward passes.

    The hook holds a weak reference, since Python's garbage collector cannot see cycles that lead
    through autograd.
    """

    def __init__(self, tracker: ReadTracker) -> None:
        self._tracker = weakref.ref(tracker)

    def __call__(self, _: Tensor) -> None:
        tracker = self._tracker()
        if tracker is not None:
            tracker.count()

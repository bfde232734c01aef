"""The gradients of one stage's parameters: added in microbatch order, whatever came when.

Floating point addition is not associative, so what is added first decides the bits. Each microbatch
has its turn; one that comes before its turn is kept aside until then. After the last turn a
parameter's gradient is complete: it is divided by the number of microbatches, if so wished, and
its reduction over the replicas starts.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast, runtime_checkable

from torch import Tensor, nn

__all__ = ["Gradients", "Reducer"]


@runtime_checkable
class Reducer(Protocol):
    """A module that reduces its gradients over replicas: slackline.overlap.DataParallel."""

    require_backward_grad_sync: bool

    def expect_gradients(self) -> None:
        """Gradients are about to be added to."""

    def complete_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Nothing more is added to these."""


class Gradients:
    """Used by one thread, or by autograd's for it."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        microbatches: int,
        *,
        scale: bool,
        reducer: Reducer | None,
        completed: Callable[[], None] = lambda: None,
    ) -> None:
        """`scale`: the step's gradients are divided by the number of microbatches.

        `completed` is called when the first parameter is complete.
        """
        self._parameters = [each for each in parameters if each.requires_grad]
        self._microbatches = microbatches
        self._scale = scale
        self._reducer = self._usual_reducer = reducer
        self._completed = completed
        self._next = 0
        self._aside: dict[int, list[Tensor | None]] = {}
        self._old: dict[int, Tensor] = {}
        self._complete: set[int] = set()
        self._is_open = False

    def begin(self, *, reduces: bool = True) -> None:
        """A step begins; what is there is kept, and added to at the end."""
        self._reducer = self._usual_reducer if reduces else None
        self._next = 0
        self._aside.clear()
        self._old.clear()
        self._complete.clear()
        self._is_open = False

    @contextmanager
    def turn(self, microbatch: int) -> Iterator[bool]:
        """Within it the microbatch's gradients are added to the parameters' own.

        Gives whether what is added last completes its parameter, so that `complete` may be called.
        """
        self.open()
        if microbatch != self._next:
            with self._set_aside(microbatch):
                yield False
            return
        last = self._next == self._microbatches - 1
        handles = []
        if last and self._reducer is not None:
            handles = [
                cast(Any, each).register_post_accumulate_grad_hook(self._complete_one)
                for each in self._parameters
            ]
        try:
            yield last
        finally:
            for handle in handles:
                handle.remove()
        self._next += 1
        while (kept := self._aside.pop(self._next, None)) is not None:
            self._next += 1
            for parameter, gradient in zip(self._parameters, kept, strict=True):
                _add(parameter, gradient)
        if self._next == self._microbatches:
            self.complete(self._parameters)

    def complete(self, parameters: Iterable[Tensor]) -> None:
        """The last of these gradients' parts has been added."""
        new = [each for each in parameters if id(each) not in self._complete]
        if new and not self._complete:
            self._completed()
        for parameter in new:
            self._complete.add(id(parameter))
            gradient = parameter.grad
            if gradient is not None and self._scale and self._microbatches > 1:
                gradient.div_(self._microbatches)
            old = self._old.pop(id(parameter), None)
            if old is not None:
                if gradient is not None:
                    old.add_(gradient)
                parameter.grad = old
        if self._reducer is not None:
            self._reducer.complete_gradients(new)

    def _complete_one(self, parameter: Tensor) -> None:
        self.complete([parameter])

    def open(self) -> None:
        """Before the first gradient: those of earlier steps are not divided again."""
        if self._is_open:
            return
        self._is_open = True
        if self._reducer is not None:
            self._reducer.expect_gradients()
        if not self._scale:
            return
        for parameter in self._parameters:
            if parameter.grad is not None:
                self._old[id(parameter)] = parameter.grad
                parameter.grad = None

    @contextmanager
    def _set_aside(self, microbatch: int) -> Iterator[None]:
        so_far = [each.grad for each in self._parameters]
        for each in self._parameters:
            each.grad = None
        yield
        self._aside[microbatch] = [each.grad for each in self._parameters]
        for each, gradient in zip(self._parameters, so_far, strict=True):
            each.grad = gradient


def _add(parameter: nn.Parameter, gradient: Tensor | None) -> None:
    if gradient is None:
        return
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad.add_(gradient)

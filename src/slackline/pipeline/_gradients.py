"""The gradients of one stage's parameters, added in microbatch order whatever the timing.

Floating point addition is not associative, so the order of additions affects the rounding of the
sum. Gradients of a microbatch that is computed too early are set aside until the earlier
microbatches are added. After the last microbatch a parameter's gradient is complete. The gradient
is then divided by the number of microbatches, if the user asked for it, and its reduction over the
replicas starts.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from torch import Tensor, nn

from slackline.errors import InternalError

__all__ = ["Gradients", "Reducer"]


@runtime_checkable
class Reducer(Protocol):
    """A module that reduces its gradients over replicas: slackline.overlap.DataParallel."""

    require_backward_grad_sync: bool

    def expect_gradients(self) -> None:
        """Announce that the pipeline adds to gradients itself; no autograd hook reports that."""

    def complete_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Start the reductions of these parameters' gradients, which are complete."""


class Gradients:
    """The gradients of one stage's parameters during a step.

    Only one thread may use the object; while this thread waits for autograd, autograd's thread may.
    """

    def __init__(
        self,
        microbatches: int,
        *,
        scale: bool,
        reducer: Reducer | None,
        completed: Callable[[], None] = lambda: None,
        added: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the gradients of a stage whose parameters `begin` gets.

        With `scale`, a step's gradients are divided by the number of microbatches. `reducer` None
        reduces nothing. `completed` is called when the first parameter of a step is complete.
        `added` is called after the last backward of a step, before gradients are divided.
        """
        self._parameters: list[nn.Parameter] = []
        self._microbatches = microbatches
        self._scale = scale
        self._reducer = self._usual_reducer = reducer
        self._completed = completed
        self._added = added
        self._next = 0
        self._aside: dict[int, list[Tensor | None]] = {}
        self._old: dict[int, Tensor] = {}
        self._complete: set[int] = set()
        self._is_open = False

    def begin(self, parameters: Sequence[nn.Parameter], *, reduces: bool = True) -> None:
        """Begin a training step; gradients of earlier steps are set aside and added at its end.

        `parameters` are the stage's; frozen ones are left out. With `reduces` false, gradients are
        not reduced over replicas in this step.
        """
        self._parameters = [each for each in parameters if each.requires_grad]
        self._reducer = self._usual_reducer if reduces else None
        self._next = 0
        self._aside.clear()
        self._old.clear()
        self._complete.clear()
        self._is_open = False

    def end(self, where: str) -> None:
        """End a training step; raise InternalError if a microbatch has not had its turn.

        The text of the error begins with `where`.
        """
        if self._next != self._microbatches:
            raise InternalError(
                f"{where}: the gradients of {self._next} of {self._microbatches} microbatches "
                "were added"
            )

    def turn(self, microbatch: int) -> "_Turn":
        """Run the body for a microbatch, and add its gradients in the order of microbatches.

        Every microbatch has one turn, even if it has no gradients. The gradients of a microbatch
        that is computed too early are set aside until all earlier microbatches are added.
        """
        return _Turn(self, microbatch)

    def begin_turn(self, microbatch: int) -> Callable[[BaseException | None], None]:
        """Begin the turn of a microbatch; return the function that ends it, with its error."""
        self.open()
        if microbatch != self._next:
            return self._set_aside(microbatch)
        if self._reducer is None or microbatch != self._microbatches - 1:
            return self._end_turn
        handles = [
            cast(Any, each).register_post_accumulate_grad_hook(self._complete_one)
            for each in self._parameters
        ]

        def end(error: BaseException | None) -> None:
            for handle in handles:
                handle.remove()
            self._end_turn(error)

        return end

    def _end_turn(self, error: BaseException | None) -> None:
        """End the turn of the next microbatch, and those of the microbatches set aside after it."""
        if error is not None:
            return
        self._next += 1
        while (kept := self._aside.pop(self._next, None)) is not None:
            self._next += 1
            for parameter, gradient in zip(self._parameters, kept, strict=True):
                _add(parameter, gradient)
        if self._next == self._microbatches:
            self._added()
            self.complete(self._parameters)

    def complete(self, parameters: Iterable[Tensor]) -> None:
        """Divide gradients, add the gradients of earlier steps, and start the reductions."""
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
        if self._scale and parameter.grad is not None:
            # Autograd has made this gradient, perhaps in memory that the backward still uses.
            parameter.grad = parameter.grad.clone()
        self.complete([parameter])

    def open(self) -> None:
        """Prepare for a training step's first gradient; further calls in the step do nothing.

        Gradients of earlier steps are set aside, so that they are not divided again.
        """
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

    def _set_aside(self, microbatch: int) -> Callable[[BaseException | None], None]:
        so_far = [each.grad for each in self._parameters]
        for each in self._parameters:
            each.grad = None

        def end(error: BaseException | None) -> None:
            if error is not None:
                return
            self._aside[microbatch] = [each.grad for each in self._parameters]
            for each, gradient in zip(self._parameters, so_far, strict=True):
                each.grad = gradient

        return end


class _Turn:
    """The context of a microbatch's turn; a class, since a generator takes more calls."""

    __slots__ = ("_end", "_gradients", "_microbatch")

    def __init__(self, gradients: Gradients, microbatch: int) -> None:
        self._gradients, self._microbatch = gradients, microbatch

    def __enter__(self) -> None:
        self._end = self._gradients.begin_turn(self._microbatch)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end(error)


def _add(parameter: nn.Parameter, gradient: Tensor | None) -> None:
    if gradient is None:
        return
    if parameter.grad is None:
        parameter.grad = gradient
    else:
        parameter.grad.add_(gradient)

"""The computations of one stage: F, B, W and BW of its module, one microbatch at a time.

    F     the forward of the module, and on the last stage the loss
    B     the gradients of the stage's inputs; intermediate values for W are kept
    W     the gradients of the weights, from the kept values
    BW    both backwards in one

Where no input needs a gradient, as on the first stage or after a frozen one, B does nothing and W
is the whole backward. B runs a backward that cannot be divided whole, and W does nothing. For a
stage with a `dw_builder`, B runs the module's own backward, and W runs the function that the
builder returned.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from slackline.errors import InternalError, UsageError
from slackline.pipeline._backward import Divided, apart, backward_of, divide
from slackline.pipeline._gradients import Gradients, Reducer
from slackline.pipeline._outputs import detached, sendable
from slackline.pipeline._reached import Reached
from slackline.pipeline._replicas import replicas_of
from slackline.pipeline._torch import Stage
from slackline.plan.pipeline import Instruction, Kind, PipelinePlan

__all__ = ["LossFunction", "Worker", "check_apart"]

LossFunction = Callable[..., Tensor]
T = TypeVar("T")
_REMEMBERED = 8
"""The number of plans that are known to be checked: more than a trial has."""


class _Kept:
    """The values of a microbatch that its forward (F) keeps for its backwards (B and W)."""

    __slots__ = ("divided", "done", "gradients", "inputs", "outputs", "reached", "runner")

    def __init__(self, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.gradients: list[Tensor] | None = None
        self.divided: Divided | None = None
        self.runner: Callable[[], None] | None = None
        self.reached: Reached | None = None
        self.done = False
        """Whether B has added to the weights' gradients."""


class Worker:
    """The computation of one pipeline stage: forwards (F) and backwards (B, W) of its module."""

    def __init__(
        self,
        stage: Stage,
        microbatches: int,
        *,
        loss_fn: LossFunction | None,
        scale: bool,
        split: bool | None,
        completed: Callable[[], None],
    ) -> None:
        """Prepare the computation of torch's `stage`.

        `split` separates W from B; None separates them if no value is then computed twice. `scale`
        divides a step's gradients by the number of microbatches. `completed` is called when the
        first parameter of a step is complete.
        """
        self.index = stage.stage_index
        self.first = stage.stage_index == 0
        self.last = stage.stage_index == stage.num_stages - 1
        self._stage = stage
        self._module = stage.submod
        self._device = stage.device.type
        self._loss_fn = loss_fn
        self._sharded = replicas_of(self._module, self.index)
        self._split = split
        self._repeats = False
        """Whether a divided backward has run Python code of the forward's path twice."""
        self._reducer = self._module if isinstance(self._module, Reducer) else None
        self._parameters: dict[str, nn.Parameter] = {}
        self._needing: list[bool] = []
        self._plan: PipelinePlan | None = None
        self._checks = False
        self._checked: dict[int, PipelinePlan] = {}
        """The plans by identity of which a step was checked, with the parameters as they are."""
        self._gradients = Gradients(
            microbatches,
            scale=scale,
            reducer=self._reducer,
            completed=completed,
            added=self._all_added,
        )
        self._kept: dict[int, _Kept] = {}
        self._synchronizes = True
        self._keeps_outputs = True
        self._loss_keywords: Mapping[str, Any] | None = {}
        self._losses: dict[int, Tensor] = {}
        self._outputs: dict[int, Any] = {}

    def begin(
        self,
        plan: PipelinePlan,
        *,
        training: bool,
        keeps_outputs: bool,
        loss_keywords: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin a step: clear losses and outputs, and suspend the module's gradient reductions.

        With `keeps_outputs` false, the outputs of the last stage are freed after their backwards.
        The loss function gets `loss_keywords` with every microbatch; None computes no loss.
        """
        self._kept.clear()
        self._keeps_outputs = keeps_outputs
        self._loss_keywords = loss_keywords
        self._losses.clear()
        self._outputs.clear()
        if self._reducer is not None:
            self._synchronizes = self._reducer.require_backward_grad_sync
            self._reducer.require_backward_grad_sync = False
        self._sharded = replicas_of(self._module, self.index)
        if self._sharded is not None:
            self._sharded.free()
        if training:
            self._plan = plan
            if self._read_parameters():
                self._checked.clear()
            self._checks = id(plan) not in self._checked
            self._checked[id(plan)] = plan
            if len(self._checked) > _REMEMBERED:
                del self._checked[next(iter(self._checked))]
            self._gradients.begin(list(self._parameters.values()), reduces=self._synchronizes)
        if self._sharded is not None:
            self._sharded.gather()

    def _read_parameters(self) -> bool:
        """Read the module's parameters; return whether they differ from those of the last step."""
        found = dict(self._module.named_parameters())
        needing = [each.requires_grad for each in found.values()]
        known = self._parameters
        same = found.keys() == known.keys() and all(found[name] is known[name] for name in found)
        changed = not same or needing != self._needing
        self._parameters, self._needing = found, needing
        return changed

    def trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Return the names and parameters that need gradients in this step."""
        return ((name, each) for name, each in self._parameters.items() if each.requires_grad)

    def complete(self) -> None:
        """Raise InternalError unless the gradients of all microbatches have been added."""
        self._gradients.end(f"stage {self.index}")

    def end(self) -> None:
        """End a step, also after an error: free kept values, and restore the reducer's setting."""
        self._kept.clear()
        if self._sharded is not None:
            self._sharded.end()
        if self._reducer is not None:
            self._reducer.require_backward_grad_sync = self._synchronizes

    def take_results(self) -> tuple[list[Tensor], list[Any]]:
        """Remove and return the step's losses and kept outputs, in microbatch order."""
        losses = [loss for _, loss in sorted(self._losses.items(), key=itemgetter(0))]
        outputs = [output for _, output in sorted(self._outputs.items(), key=itemgetter(0))]
        self._losses.clear()
        self._outputs.clear()
        return losses, outputs

    def forward(
        self,
        microbatch: int,
        inputs: tuple[Any, ...],
        keywords: Mapping[str, Any],
        target: Any,
        *,
        training: bool,
    ) -> tuple[Tensor, ...]:
        """Run the forward (F) of a microbatch; return the module's outputs as a tuple.

        The last stage returns the loss instead, if it has a loss function. With `training`, the
        values that the backward needs are kept.
        """
        if torch.is_grad_enabled() == training:
            outputs = self._forward(microbatch, inputs, keywords, target)
        else:
            with torch.set_grad_enabled(training):
                outputs = self._forward(microbatch, inputs, keywords, target)
        if training:
            self._kept[microbatch] = _Kept(inputs, outputs)
        return outputs

    def _forward(
        self, microbatch: int, inputs: tuple[Any, ...], keywords: Mapping[str, Any], target: Any
    ) -> tuple[Tensor, ...]:
        output = self._module(*inputs, **keywords)
        if not self.last:
            return sendable(output, f"stage {self.index}, F{microbatch}")
        if self._keeps_outputs:
            self._outputs[microbatch] = detached(output)
        if self._loss_fn is None or self._loss_keywords is None:
            return ()
        loss = self._loss(microbatch, output, target)
        self._losses[microbatch] = loss.detach()
        return (loss,)

    def backward(
        self, instruction: Instruction, received: Sequence[Tensor | None] | None
    ) -> list[Tensor | None]:
        """Run a backward (B or BW) of a microbatch; return the gradients of the inputs or None.

        `received` holds the gradients of the outputs; None on the last stage, which has a loss.
        """
        if torch.is_autocast_enabled(self._device):
            # Backwards use the types of the forward.
            with torch.autocast(self._device, enabled=False):
                return self._backward(instruction, received)
        return self._backward(instruction, received)

    def _backward(
        self, instruction: Instruction, received: Sequence[Tensor | None] | None
    ) -> list[Tensor | None]:
        microbatch = instruction.microbatch
        kept = self._kept[microbatch]
        self._choose(instruction, kept, received)
        inputs = [each for each in kept.inputs if isinstance(each, Tensor)]
        whole = instruction.kind is Kind.BW
        found: list[Tensor | None] = [None] * len(inputs)
        if self._stage.dw_builder is not None:
            self._gradients.open()
            found = backward_of(kept.outputs, kept.gradients, inputs)
            kept.runner = self._stage.dw_builder()
        else:
            if self._checks:
                kept.reached = Reached(kept.outputs, self._parameters)
            waits = not self.first and any(each.requires_grad for each in inputs)
            if waits and not whole and kept.outputs:
                kept.divided = self._divided(kept, inputs)
            if kept.divided is not None:
                found = kept.divided.for_inputs()
            elif whole or waits:
                found = self._add(microbatch, kept, lambda: self._whole(kept, inputs))
                kept.done = True
        if kept.done or kept.divided is not None or kept.runner is not None:
            kept.outputs = kept.inputs = ()
        if whole:
            self.weights(microbatch)
        return found

    def weights(self, microbatch: int) -> None:
        """Run the backward for the weights (W) of a microbatch; add to the weights' gradients."""
        kept = self._kept.pop(microbatch)
        if kept.done:
            return
        if torch.is_autocast_enabled(self._device):
            with torch.autocast(self._device, enabled=False):
                self._add(microbatch, kept, lambda: self._weights(kept))
        else:
            self._add(microbatch, kept, lambda: self._weights(kept))

    def _whole(self, kept: _Kept, inputs: Sequence[Tensor]) -> list[Tensor | None]:
        """Run a backward in one piece; return the gradients of the inputs."""
        if self.first:
            return backward_of(kept.outputs, kept.gradients, inputs)
        # A gradient that autograd adds to has memory of its own already.
        new = [each for _, each in self.trained() if each.grad is None]
        found = backward_of(kept.outputs, kept.gradients, inputs)
        return apart(found, [each.grad for each in new]) if new else found

    def _weights(self, kept: _Kept) -> None:
        """Run the second part of a backward."""
        if kept.runner is not None:
            kept.runner()
        elif kept.divided is not None:
            kept.divided.for_weights(watch=self._checks)
            self._repeats = self._repeats or kept.divided.repeats
        else:
            backward_of(kept.outputs, kept.gradients, ())

    def _divided(self, kept: _Kept, inputs: Sequence[Tensor]) -> Divided | None:
        if self._split is False or (self._split is None and self._repeats):
            return None
        if self._sharded is not None:  # Its hooks expect the backward in one piece.
            return None
        at_any_price = self._split is True
        return divide(kept.outputs, kept.gradients, inputs, at_any_price=at_any_price)

    def _add(self, microbatch: int, kept: _Kept, adding: Callable[[], T]) -> T:
        """Call `adding` in the microbatch's turn to add gradients; return its value.

        Raises InternalError if the call misses a weight that the microbatch's graph reaches.
        """
        with self._gradients.turn(microbatch):
            if kept.reached is None:
                found = adding()
            else:
                with kept.reached.counted():
                    found = adding()
        if kept.reached is not None or kept.divided is not None:
            self._check_added(microbatch, kept)
        return found

    def _check_added(self, microbatch: int, kept: _Kept) -> None:
        """Raise InternalError if the microbatch has not added to all weights that it reaches."""
        missing = kept.reached.missing() if kept.reached is not None else []
        if kept.divided is not None and kept.divided.left:
            missing = missing or self._names_of(kept.divided)
        if missing:
            assert self._plan is not None
            raise InternalError(
                f'stage {self.index}, microbatch {microbatch} of schedule "{self._plan.name}": '
                f"the gradients of {', '.join(missing)} were not computed, though the microbatch's "
                "loss depends on them; ScheduleConfig(split_backward=False) runs each backward in "
                "one piece"
            )

    def _names_of(self, divided: Divided) -> list[str]:
        """Return names of the weights that have not been added to, or their number."""
        names = {id(each): name for name, each in self._parameters.items()}
        found = [names.get(id(each), "a tensor that is no parameter") for each in divided.missing]
        return found or [f"{divided.left} parameters"]

    def _choose(
        self, instruction: Instruction, kept: _Kept, received: Sequence[Tensor | None] | None
    ) -> None:
        """Keep for the backward only the outputs that have gradients, and these gradients."""
        if received is None:
            loss = kept.outputs[0]
            kept.outputs = (loss,) if loss.requires_grad else ()
            return
        if len(received) != len(kept.outputs):
            raise UsageError(
                f"stage {self.index}, {instruction.in_stage}: received {len(received)} gradients "
                f"for {len(kept.outputs)} outputs"
            )
        chosen = []
        for output, gradient in zip(kept.outputs, received, strict=True):
            if gradient is None or not output.requires_grad:
                continue
            if gradient.shape != output.shape:
                raise UsageError(
                    f"stage {self.index}, {instruction.in_stage}: received a gradient of shape "
                    f"{list(gradient.shape)} for an output of shape {list(output.shape)}"
                )
            chosen.append((output, gradient))
        kept.outputs = tuple(output for output, _ in chosen)
        kept.gradients = [gradient for _, gradient in chosen]

    def _loss(self, microbatch: int, output: Any, target: Any) -> Tensor:
        assert self._loss_fn is not None
        try:
            loss = self._loss_fn(output, target, **(self._loss_keywords or {}))
        except Exception as error:
            if target is None:
                error.add_note("the target is None: the last stage's rank gave `step` no `target`")
            raise
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shown = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise UsageError(
                f"stage {self.index}, F{microbatch}: loss_fn must return a tensor of one element, "
                f"not {shown}"
            )
        return loss

    def _all_added(self) -> None:
        if self._sharded is not None:
            self._sharded.reduce()


def check_apart(workers: Iterable[Worker]) -> None:
    """Raise UsageError if a parameter that is trained belongs to several stages of this rank.

    Each stage divides its gradients, and has those of earlier steps added, on its own.
    """
    found: dict[int, tuple[str, Worker]] = {}
    for worker in workers:
        for name, parameter in worker.trained():
            known = found.setdefault(id(parameter), (name, worker))
            if known[1] is not worker:
                raise UsageError(
                    f'parameter "{known[0]}" of stage {known[1].index} is also "{name}" of stage '
                    f"{worker.index}: give one of the stages a copy, add the copy's gradient to "
                    "the other's after each step, and copy the values back after the optimizer's"
                )

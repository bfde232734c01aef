"""The computations of one stage: F, B, W and BW of its module, one microbatch at a time.

    F     the forward of the module, and on the last stage the loss
    B     the gradients of the stage's inputs; intermediate values for W are kept
    W     the gradients of the weights, from the kept values
    BW    both backwards in one

The first stage sends no gradients, so its B does nothing and its W is the whole backward. A graph
that can only compute all its gradients at once, such as that of compiled code or of a reentrant
checkpoint, would be run twice by B and W. For such a graph, B is the whole backward and W does
nothing. For a stage with a `dw_builder`, B runs the module's own backward, and W runs the function
that the builder returned.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from slackline.errors import UsageError
from slackline.pipeline._gradients import Gradients, Reducer
from slackline.pipeline._outputs import detached, sendable
from slackline.pipeline._torch import (
    Groups,
    Stage,
    backward_of,
    inputs_backward,
    opaque_nodes,
    weights_backward,
    weights_of,
)
from slackline.plan.pipeline import Instruction, Kind

__all__ = ["LossFunction", "Worker"]

LossFunction = Callable[..., Tensor]


class _Kept:
    """The values of a microbatch that its forward (F) keeps for its backwards (B and W)."""

    __slots__ = ("gradients", "groups", "inputs", "outputs", "runner")

    def __init__(self, inputs: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.gradients: list[Tensor] | None = None
        self.groups: Groups | None = None
        self.runner: Callable[[], None] | None = None


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
        self._loss_fn = loss_fn
        self._split = split
        self._reducer = self._module if isinstance(self._module, Reducer) else None
        self._parameters = list(self._module.parameters())
        self._gradients = Gradients(
            self._parameters,
            microbatches,
            scale=scale,
            reducer=self._reducer,
            completed=completed,
        )
        self._kept: dict[int, _Kept] = {}
        self._synchronizes = True
        self._keeps_outputs = True
        self._loss_keywords: Mapping[str, Any] | None = {}
        self._losses: dict[int, Tensor] = {}
        self._outputs: dict[int, Any] = {}

    def begin(
        self,
        *,
        training: bool,
        keeps_outputs: bool,
        loss_keywords: Mapping[str, Any] | None,
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
        if training:
            self._gradients.begin(reduces=self._synchronizes)

    def end(self) -> None:
        """End a step, also after an error: free kept values, and restore the reducer's setting."""
        self._kept.clear()
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
        with torch.set_grad_enabled(training):
            output = self._module(*inputs, **keywords)
            outputs: tuple[Tensor, ...] = ()
            if not self.last:
                outputs = sendable(output, f"stage {self.index}, F{microbatch}")
            else:
                if self._keeps_outputs:
                    self._outputs[microbatch] = detached(output)
                if self._loss_fn is not None and self._loss_keywords is not None:
                    loss = self._loss(microbatch, output, target)
                    self._losses[microbatch] = loss.detach()
                    outputs = (loss,)
        if training:
            # torch detaches the outputs in place at the end of B, which a view does not permit.
            outputs = tuple(each.clone() if each._is_view() else each for each in outputs)
            self._kept[microbatch] = _Kept(inputs, outputs)
            if self._split is None:
                self._split = not opaque_nodes(outputs)
        return outputs

    def backward(
        self, instruction: Instruction, received: Sequence[Tensor | None] | None
    ) -> list[Tensor | None]:
        """Run a backward (B or BW) of a microbatch; return the gradients of the inputs or None.

        `received` holds the gradients of the outputs; None on the last stage, which has a loss.
        """
        microbatch = instruction.microbatch
        kept = self._kept[microbatch]
        self._choose(instruction, kept, received)
        inputs = [each for each in kept.inputs if isinstance(each, Tensor)]
        whole = instruction.kind is Kind.BW
        builder = self._stage.dw_builder
        if builder is not None:
            self._gradients.open()
        with self._plainly():
            if whole or builder is not None or not (self.first or self._split):
                with self._gradients.turn(microbatch) if builder is None else nullcontext():
                    found = backward_of(kept.outputs, kept.gradients, inputs)
                kept.outputs = kept.inputs = ()
                if builder is not None:
                    kept.runner = builder()
                    if whole:
                        self.weights(microbatch)
            elif self.first:
                found = [None] * len(inputs)
            elif kept.outputs:
                found, kept.groups = inputs_backward(
                    kept.outputs, kept.gradients, inputs, self._parameters
                )
                kept.outputs = ()
            else:
                found, kept.groups = [None] * len(inputs), []
        if whole:
            self._kept.pop(microbatch, None)
        return found

    def weights(self, microbatch: int) -> None:
        """Run the backward for the weights (W) of a microbatch; add to the weights' gradients."""
        kept = self._kept.pop(microbatch)
        with self._plainly():
            if kept.runner is not None:
                with self._gradients.turn(microbatch):
                    kept.runner()
            elif kept.groups is not None:
                with self._gradients.turn(microbatch) as completes:
                    self._add(kept.groups, completes)
            elif self.first and kept.outputs:
                with self._gradients.turn(microbatch):
                    backward_of(kept.outputs, kept.gradients, ())

    def _add(self, groups: Groups, completes: bool) -> None:
        if not completes:
            weights_backward(self._parameters, groups)
            return
        members = [weights_of(group) for group in groups]
        for place, weights in enumerate(members):
            weights_backward(weights, [groups[place]])
            later = {id(each) for rest in members[place + 1 :] for each in rest}
            self._gradients.complete(each for each in weights if id(each) not in later)

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

    def _plainly(self) -> AbstractContextManager[Any]:
        """Return a context without autocast, so that backwards use the types of the forward."""
        kind = self._stage.device.type
        if torch.is_autocast_enabled(kind):
            return torch.autocast(kind, enabled=False)
        return nullcontext()

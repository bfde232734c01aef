"""The adapter to torch's untyped interfaces: pipeline stages, and the backward in two parts."""

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.autograd.graph import Node
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import _backward as parts
from torch.distributed.pipelining.stage import _PipelineStageBase

__all__ = ["Groups", "Stage", "backward_of", "inputs_backward", "is_stage", "weights_backward"]

Groups = list[dict[str, Any]]
"""torch's intermediate state between the two parts of a backward: groups of graph nodes."""


class Stage(Protocol):
    """The attributes of torch's PipelineStage that this package uses.

    A stage may be made by hand or by torch's tracer.
    """

    submod: nn.Module
    stage_index: int
    num_stages: int
    device: torch.device
    group: dist.ProcessGroup | None
    dw_builder: Callable[[], Callable[[], None]] | None


def is_stage(value: object) -> bool:
    """Return whether a value is one of torch's pipeline stages."""
    return isinstance(value, PipelineStage | _PipelineStageBase)


def sources_of(stage: Any) -> set[int]:
    """Return the indices of the stages whose outputs a traced stage takes as inputs.

    The set is empty for a stage without a traced graph.
    """
    found: set[int] = set()
    node = getattr(stage, "node", None)
    for argument in () if node is None else node.args:
        source = argument
        while source.target is operator.getitem:
            source = source.args[0]
        if source.op == "call_module":
            found.add(stage.get_stage_index_of_submod(source.name))
    return found


def inputs_backward(
    outputs: Sequence[Tensor],
    gradients: Sequence[Tensor] | None,
    inputs: Sequence[Tensor],
    weights: Iterable[nn.Parameter],
) -> tuple[list[Tensor | None], Groups]:
    """Run the first part of a backward, which computes the gradients of the inputs.

    Returns the gradients, and the intermediate state for `weights_backward`.
    """
    grads = None if gradients is None else list(gradients)
    found, groups = parts.stage_backward_input(list(outputs), grads, list(inputs), iter(weights))
    for each in inputs:
        each.grad = None
    return list(found), groups


def weights_backward(weights: Iterable[nn.Parameter], groups: Groups) -> None:
    """Run the second part of a backward, which adds to the gradients of the weights.

    `groups` is the intermediate state that `inputs_backward` returned.
    """
    parts.stage_backward_weight(iter(weights), groups)


def weights_of(group: dict[str, Any]) -> list[nn.Parameter]:
    """Return the weights whose gradients `weights_backward` computes from one group of nodes."""
    return [cast(Any, node).variable for node in group["params"]]


def backward_of(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor] | None, inputs: Sequence[Tensor]
) -> list[Tensor | None]:
    """Run a backward in one piece; add to the weights' gradients, return the inputs' gradients."""
    if outputs:
        torch.autograd.backward(list(outputs), None if gradients is None else list(gradients))
    found = [each.grad if each.requires_grad and each.is_leaf else None for each in inputs]
    for each in inputs:
        if each.is_leaf:
            each.grad = None
    return found


def opaque_nodes(outputs: Sequence[Tensor]) -> set[str]:
    """Return the class names of graph nodes that can only compute all their gradients at once.

    Compiled functions and reentrant checkpoints have such nodes.
    """
    found: set[str] = set()
    left = [each.grad_fn for each in outputs if each.grad_fn is not None]
    seen: set[Node] = set(left)
    while left:
        node = left.pop()
        name = type(node).__name__
        if name in ("CompiledFunctionBackward", "CheckpointFunctionBackward"):
            found.add(name)
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                left.append(after)
    return found

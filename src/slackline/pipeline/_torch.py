"""The adapter to torch's untyped edges: its pipeline stages and the backward in two parts."""

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
"""What torch keeps between the two parts of a backward."""


class Stage(Protocol):
    """What is used of torch's PipelineStage, by hand or from its tracer."""

    submod: nn.Module
    stage_index: int
    num_stages: int
    device: torch.device
    group: dist.ProcessGroup | None
    dw_builder: Callable[[], Callable[[], None]] | None


def is_stage(value: object) -> bool:
    """Whether torch made it to be a stage."""
    return isinstance(value, PipelineStage | _PipelineStageBase)


def sources_of(stage: Any) -> set[int]:
    """The stages whose outputs a traced stage takes, as far as its graph tells."""
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
    """The gradients of the inputs, and what is left to do for the weights' own."""
    grads = None if gradients is None else list(gradients)
    found, groups = parts.stage_backward_input(list(outputs), grads, list(inputs), iter(weights))
    for each in inputs:
        each.grad = None
    return list(found), groups


def weights_backward(weights: Iterable[nn.Parameter], groups: Groups) -> None:
    """Adds to the weights' gradients what `inputs_backward` has left."""
    parts.stage_backward_weight(iter(weights), groups)


def weights_of(group: dict[str, Any]) -> list[nn.Parameter]:
    """The weights whose gradients a group gives."""
    return [cast(Any, node).variable for node in group["params"]]


def backward_of(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor] | None, inputs: Sequence[Tensor]
) -> list[Tensor | None]:
    """The whole backward: adds to the weights' gradients, gives those of the inputs."""
    if outputs:
        torch.autograd.backward(list(outputs), None if gradients is None else list(gradients))
    found = [each.grad if each.requires_grad and each.is_leaf else None for each in inputs]
    for each in inputs:
        if each.is_leaf:
            each.grad = None
    return found


def opaque_nodes(outputs: Sequence[Tensor]) -> set[str]:
    """The nodes of a graph that give all their gradients at once, by name."""
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

"""The adapter to torch's untyped interface of pipeline stages."""

import operator
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.stage import _PipelineStageBase

__all__ = ["Stage", "is_stage", "sources_of"]


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

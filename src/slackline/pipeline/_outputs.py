"""Outputs of stages: tensors to send to the next stage, and values to return to the caller."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.pipelining.microbatch import merge_chunks
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from slackline.errors import UsageError

__all__ = ["detached", "merge", "sendable"]

_ONE_BY_ONE = (
    "step_microbatches returns the outputs one by one, and return_outputs=False returns none"
)


def sendable(output: Any, what: str) -> tuple[Tensor, ...]:
    """Return the output of a stage as the tensors that are sent to the next stage.

    Raises UsageError, with a text that begins with `what`, for outputs that cannot be sent.
    """
    outputs = tuple(output) if isinstance(output, tuple | list) else (output,)
    for place, each in enumerate(outputs):
        if not isinstance(each, Tensor):
            given = "None" if each is None else type(each).__name__
            raise UsageError(
                f"{what}: output {place} must be a tensor, not {given}. Return the tensors for the "
                "next stage in one tuple; give other values to `step` as keyword arguments on the "
                "rank of the stage that takes them."
            )
        if isinstance(each, DTensor):
            raise UsageError(
                f"{what}: output {place} is a DTensor, which cannot be sent; return its local part"
            )
    return outputs


def detached(output: Any) -> Any:
    """Return a copy of an output in which the tensors are outside the autograd graph."""
    return tree_map(_detached, output)


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach()
    if is_dataclass(value) and not isinstance(value, type):
        return _with_fields(value, lambda name: detached(getattr(value, name)))
    # The registered containers are no leaves, so these are subclasses that torch does not know.
    if isinstance(value, dict):
        return detached(dict(value))
    return detached(list(value)) if isinstance(value, list) else value


def merge(outputs: Sequence[Any], spec: Any) -> Any:
    """Merge the last stage's outputs of all microbatches into the output of the whole batch.

    `spec` is torch's merge spec. Without a spec, tensors are concatenated along dimension 0, and
    tensors without dimensions are stacked. Other values must be equal in all microbatches. Raises
    UsageError for outputs that cannot be merged.
    """
    if spec is None:
        return _merged(outputs, "the output")
    try:
        return merge_chunks(list(outputs), spec)
    except (AssertionError, TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"output_merge_spec does not fit the outputs: {error}") from error


def _merged(outputs: Sequence[Any], what: str) -> Any:
    flat = [tree_flatten(each) for each in outputs]
    leaves, structure = flat[0]
    for microbatch, (_, other) in enumerate(flat):
        if other != structure:
            raise UsageError(
                f"{what} of microbatch {microbatch} has another structure than that of microbatch "
                f"0, so the outputs cannot be merged: {_ONE_BY_ONE}"
            )
    found = []
    for place in range(len(leaves)):
        values = [entries[place] for entries, _ in flat]
        name = what if len(leaves) == 1 else f"value {place} of {what}"
        found.append(_merged_values(values, name))
    return tree_unflatten(found, structure)


def _merged_values(values: Sequence[Any], what: str) -> Any:
    first = values[0]
    if all(isinstance(each, Tensor) for each in values):
        if not any(each.dim() for each in values):
            return torch.stack(list(values))
        try:
            return merge_chunks(list(values), None)
        except (AssertionError, RuntimeError) as error:
            shapes = ", ".join(str(list(each.shape)) for each in values)
            raise UsageError(
                f"{what} has the shapes {shapes}, which cannot be merged along dimension 0: "
                f"{_ONE_BY_ONE}; output_merge_spec merges along other dimensions"
            ) from error
    kinds = {type(each) for each in values}
    if len(kinds) == 1 and is_dataclass(first):
        return _with_fields(
            first,
            lambda name: _merged([getattr(each, name) for each in values], f"{name} of {what}"),
        )
    if len(kinds) == 1 and all(_equal(first, each) for each in values):
        return first
    names = " and ".join(sorted(each.__name__ for each in kinds))
    raise UsageError(
        f"{what} is of type {names} and differs between microbatches, so it cannot be merged: "
        f"{_ONE_BY_ONE}"
    )


def _equal(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except (TypeError, ValueError, RuntimeError):  # Arrays, for example, compare their elements.
        return False


def _with_fields(value: Any, field_of: Callable[[str], Any]) -> Any:
    """Return a copy of a dataclass's instance with other values in its fields."""
    found = copy.copy(value)
    frozen = value.__dataclass_params__.frozen
    for each in fields(value):
        if hasattr(value, each.name):
            (object.__setattr__ if frozen else setattr)(found, each.name, field_of(each.name))
    return found

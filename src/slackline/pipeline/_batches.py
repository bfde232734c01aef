"""Splitting of a batch into microbatches and merging of outputs, with torch's chunk specs."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.pipelining.microbatch import merge_chunks, split_args_kwargs_into_chunks
from torch.utils._pytree import tree_leaves

from slackline.errors import UsageError
from slackline.pipeline._runner import Inputs

__all__ = ["check_microbatches", "merge", "split"]


def split(
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
    target: Any,
    microbatches: int,
    *,
    args_spec: Any = None,
    kwargs_spec: Any = None,
) -> Inputs:
    """Cut a batch into microbatches along dimension 0, or along the dimensions in torch's specs.

    If the batch does not divide evenly, the first microbatches get one more row. Raises UsageError
    if the batch is too small.
    """
    given: list[tuple[Any, ...]] = [()] * microbatches
    named: list[dict[str, Any]] = [{}] * microbatches
    if arguments or keywords:
        given, named = _chunks(arguments, dict(keywords), microbatches, args_spec, kwargs_spec)
    targets: Sequence[Any] = [None] * microbatches
    if target is not None:
        chunks, _ = _chunks((target,), {}, microbatches, None, None, "target")
        targets = [chunk[0] for chunk in chunks]
    return Inputs(arguments=given, keywords=named, targets=targets)


def _chunks(
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    microbatches: int,
    args_spec: Any,
    kwargs_spec: Any,
    what: str = "batch",
) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]]]:
    given, named = split_args_kwargs_into_chunks(
        arguments, keywords, microbatches, args_spec, kwargs_spec
    )
    if len(given) != microbatches:
        sizes = [
            list(each.shape)
            for each in tree_leaves((arguments, keywords))
            if isinstance(each, Tensor)
        ]
        shown = ", ".join(map(str, sizes))
        raise UsageError(
            f"a {what} of shape {shown} gives {len(given)} microbatches, not {microbatches}"
        )
    return given, named


def check_microbatches(
    microbatches: int,
    arguments: Sequence[Any] | None,
    keywords: Sequence[Mapping[str, Any]] | None,
    targets: Sequence[Any] | None,
) -> Inputs:
    """Check and return microbatches that the caller has made.

    Each entry of `arguments` is one argument or a tuple of arguments. Raises UsageError for a list
    whose length is not `microbatches`.
    """
    for name, given in (("inputs", arguments), ("keywords", keywords), ("targets", targets)):
        if given is not None and len(given) != microbatches:
            raise UsageError(
                f"{name} must have one entry for each of {microbatches} microbatches, "
                f"not {len(given)}"
            )
    return Inputs(
        arguments=[
            each if isinstance(each, tuple) else (each,)
            for each in ([()] * microbatches if arguments is None else arguments)
        ],
        keywords=[{}] * microbatches if keywords is None else keywords,
        targets=[None] * microbatches if targets is None else targets,
    )


def merge(outputs: Sequence[Any], spec: Any) -> Any:
    """Merge the last stage's outputs of all microbatches into the output of the whole batch."""
    return merge_chunks(list(outputs), spec)

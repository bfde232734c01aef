"""Splitting of a batch into microbatches, with torch's chunk specs."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.distributed.pipelining.microbatch import split_args_kwargs_into_chunks
from torch.utils._pytree import tree_leaves

from slackline.errors import UsageError
from slackline.pipeline._runner import Inputs

__all__ = ["check_microbatches", "split"]


def split(
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
    target: Any,
    microbatches: int,
    *,
    loss_keywords: Mapping[str, Any] | None,
    args_spec: Any = None,
    kwargs_spec: Any = None,
) -> Inputs:
    """Cut a batch into microbatches along dimension 0, or along the dimensions in torch's specs.

    If the batch does not divide evenly, the first microbatches get one more row. Values that are
    not tensors go to every microbatch. Raises UsageError if the batch is too small, or does not fit
    the specs.
    """
    given: list[tuple[Any, ...]] = [()] * microbatches
    named: list[dict[str, Any]] = [{} for _ in range(microbatches)]
    if arguments or keywords:
        given, named = _chunks(arguments, dict(keywords), microbatches, args_spec, kwargs_spec)
    targets: Sequence[Any] = [None] * microbatches
    if target is not None:
        chunks, _ = _chunks((target,), {}, microbatches, None, None, "target")
        targets = [chunk[0] for chunk in chunks]
    return Inputs(arguments=given, keywords=named, targets=targets, loss_keywords=loss_keywords)


def _chunks(
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    microbatches: int,
    args_spec: Any,
    kwargs_spec: Any,
    what: str = "batch",
) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]]]:
    if arguments and not keywords and args_spec is None and _plain(arguments, microbatches):
        # The usual case, for which torch's function also walks trees and makes its specs.
        columns = [each.tensor_split(microbatches) for each in arguments]
        return list(zip(*columns, strict=True)), [{} for _ in range(microbatches)]
    tensors = [each for each in tree_leaves((arguments, keywords)) if isinstance(each, Tensor)]
    shown = ", ".join(str(list(each.shape)) for each in tensors)
    try:
        given, named = split_args_kwargs_into_chunks(
            arguments, keywords, microbatches, args_spec, kwargs_spec
        )
    except (AssertionError, IndexError, TypeError, ValueError, RuntimeError) as error:
        scalar = any(not each.dim() for each in tensors)
        way_out = "; pass a tensor without dimensions as a number" if scalar else ""
        raise UsageError(
            f"a {what} of shape {shown} cannot be cut into microbatches: {error}{way_out}"
        ) from error
    if len(given) != microbatches:
        raise UsageError(
            f"a {what} of shape {shown} gives {len(given)} microbatches, not {microbatches}"
        )
    return given, named


def _plain(arguments: tuple[Any, ...], microbatches: int) -> bool:
    """Return whether all arguments are tensors, and long enough to be cut along dimension 0."""
    return all(
        type(each) is Tensor and each.dim() > 0 and each.shape[0] >= microbatches
        for each in arguments
    )


def check_microbatches(
    microbatches: int,
    arguments: Sequence[Any] | None,
    keywords: Sequence[Mapping[str, Any]] | None,
    targets: Sequence[Any] | None,
    loss_keywords: Mapping[str, Any],
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
        keywords=[{} for _ in range(microbatches)] if keywords is None else keywords,
        targets=[None] * microbatches if targets is None else targets,
        loss_keywords=loss_keywords,
    )

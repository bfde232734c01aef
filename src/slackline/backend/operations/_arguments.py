"""Checks of the tensors that torch passes to an operation."""

from collections.abc import Sequence

import torch

from slackline.errors import UsageError
from slackline.staging import Buffers

__all__ = ["apart", "check_alike", "first_of", "only_list", "only_tensor"]


def only_tensor(tensors: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the only tensor of torch's list; raise UsageError unless there is exactly one."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise UsageError(f"an operation takes one tensor of each rank, not {len(tensors)}")
    return tensors[0]


def only_list(
    lists: Sequence[torch.Tensor] | Sequence[Sequence[torch.Tensor]], size: int, role: str
) -> list[torch.Tensor]:
    """Return the list of one tensor for each rank, which torch may pass within another list.

    Raises UsageError, whose message names `role`, if the list does not have `size` tensors.
    """
    if len(lists) == 1 and not isinstance(lists[0], torch.Tensor):
        parts = list(lists[0])
    else:
        parts = [part for part in lists if isinstance(part, torch.Tensor)]
    if len(parts) != size:
        raise UsageError(
            f"the {role} must have one tensor for each of {size} ranks, not {len(parts)}"
        )
    return parts


def check_alike(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
    """Raise UsageError unless all tensors have the operation's element type."""
    for tensor in tensors:
        if tensor.dtype != dtype:
            raise UsageError(
                f"an operation takes tensors of one type, not {dtype} and {tensor.dtype}"
            )


def first_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the first tensor of a coalesced operation; raise UsageError if there is none."""
    if not tensors:
        raise UsageError("a coalesced operation takes at least one tensor, not 0")
    return tensors[0]


def apart(
    buffers: Buffers,
    source: torch.Tensor,
    targets: Sequence[torch.Tensor],
    addresses: Sequence[int],
    *,
    own: int | None = None,
) -> int:
    """Return the address of a source's elements, copied if the source shares a target's memory.

    `addresses` are those of the targets. The source may be the target of the index `own`, but no
    other part of the targets: data of other ranks would overwrite it before it is read.
    """
    begin = buffers.source(source)
    end = begin + source.numel() * source.element_size()
    for place, (target, address) in enumerate(zip(targets, addresses, strict=True)):
        if place == own and address == begin:
            continue
        if begin < address + target.numel() * target.element_size() and address < end:
            return buffers.temporary(source.clone())
    return begin

"""The memory of an operation's tensors: the tensor's own, or that of a contiguous copy."""

from collections.abc import Sequence
from typing import Protocol

import torch

from slackline.errors import UsageError

__all__ = [
    "HostStage",
    "Stage",
    "check_alike",
    "flat",
    "is_plain",
    "only_list",
    "only_tensor",
]


class Stage(Protocol):
    """The contiguous memory of one operation's tensors.

    The caller must keep the object until the operation ends.
    """

    def source(self, tensor: torch.Tensor) -> int:
        """Return the address from which an operation reads the tensor's contiguous elements."""

    def temporary(self, tensor: torch.Tensor) -> int:
        """Return the address to read a temporary tensor, to which the caller keeps no reference."""

    def target(self, tensor: torch.Tensor) -> int:
        """Return the address to which an operation writes; `land` then copies to the tensor."""

    def both(self, tensor: torch.Tensor) -> int:
        """Return the address of a tensor's elements that an operation reads and overwrites."""

    @property
    def lands(self) -> bool:
        """True if `land` has anything to copy."""

    def land(self) -> None:
        """Copy an operation's results to their tensors; call once after success, on any thread."""


class HostStage:
    """The memory of an operation's CPU tensors, of which only non-contiguous ones are copied."""

    __slots__ = ("_kept", "_landings")

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []
        self._landings: list[tuple[torch.Tensor, torch.Tensor]] = []

    def source(self, tensor: torch.Tensor) -> int:
        return self._keep(tensor if is_plain(tensor) else _copy(tensor))

    def temporary(self, tensor: torch.Tensor) -> int:
        return self._keep(tensor.contiguous())

    def target(self, tensor: torch.Tensor) -> int:
        if is_plain(tensor):
            return self._keep(tensor)
        return self._beside(tensor, torch.empty(tensor.shape, dtype=tensor.dtype))

    def both(self, tensor: torch.Tensor) -> int:
        if is_plain(tensor):
            return self._keep(tensor)
        return self._beside(tensor, _copy(tensor))

    @property
    def lands(self) -> bool:
        return bool(self._landings)

    def land(self) -> None:
        with torch.no_grad():
            for tensor, copy in self._landings:
                tensor.copy_(copy)

    def _keep(self, tensor: torch.Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()

    def _beside(self, tensor: torch.Tensor, copy: torch.Tensor) -> int:
        self._landings.append((tensor, copy))
        return copy.data_ptr()


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's elements in one dimension: a view if `is_plain`, else a copy."""
    return (tensor.detach() if is_plain(tensor) else _copy(tensor)).view(-1)


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's memory is exactly its elements in order.

    A tensor with lazy conjugation or negation is not plain. Raises UsageError for a tensor that is
    not dense.
    """
    if tensor.layout is not torch.strided:
        raise UsageError(f"slackline takes dense tensors, not one of layout {tensor.layout}")
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy of a tensor, with lazy conjugation and negation applied."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.clone(memory_format=torch.contiguous_format)


def only_tensor(tensors: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the only tensor of a list, as torch passes it; raise UsageError for another number."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise UsageError(f"an operation takes one tensor of each rank, not {len(tensors)}")
    return tensors[0]


def only_list(
    lists: Sequence[torch.Tensor] | Sequence[Sequence[torch.Tensor]], size: int, role: str
) -> list[torch.Tensor]:
    """Return the list of one tensor for each rank, which torch may pass within another list.

    Raises UsageError, which begins with `role`, if the list has not `size` tensors.
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

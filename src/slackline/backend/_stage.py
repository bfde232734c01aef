"""Where an operation's bytes lie: a tensor's own memory, or a contiguous copy beside it."""

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
    """Gives the memory of one operation's tensors. Keep it until the operation is done."""

    def source(self, tensor: torch.Tensor) -> int:
        """Return the address of the tensor's elements, contiguous, to be read."""

    def temporary(self, tensor: torch.Tensor) -> int:
        """As `source`, for a tensor that nobody else has."""

    def target(self, tensor: torch.Tensor) -> int:
        """Return an address to write the elements to, contiguous; `land` brings them home."""

    def both(self, tensor: torch.Tensor) -> int:
        """Return an address that is source and target at once."""

    @property
    def lands(self) -> bool:
        """Whether `land` has anything to do."""

    def land(self) -> None:
        """Bring what was written home to the tensors. Called once, after success, on any thread."""


class HostStage:
    """The Stage of CPU tensors: contiguous ones are used in place, others through a copy."""

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
    """Return the elements in one dimension: the tensor's own memory if it is plain, or a copy."""
    return (tensor.detach() if is_plain(tensor) else _copy(tensor)).view(-1)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its memory is its elements in order; raises UsageError for what is not dense."""
    if tensor.layout is not torch.strided:
        raise UsageError(f"slackline takes dense tensors, not one of layout {tensor.layout}")
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in memory of their own, contiguous, conjugated and negated as they should
    be.
    """
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.clone(memory_format=torch.contiguous_format)


def only_tensor(tensors: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the one tensor of torch's lists of one tensor; raises UsageError for more or none."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise UsageError(f"an operation takes one tensor of each rank, not {len(tensors)}")
    return tensors[0]


def only_list(
    lists: Sequence[torch.Tensor] | Sequence[Sequence[torch.Tensor]], size: int, role: str
) -> list[torch.Tensor]:
    """Return the one list (of one tensor for each rank) of torch's lists of one list."""
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
    """Raise UsageError unless all tensors have the type of the operation."""
    for tensor in tensors:
        if tensor.dtype != dtype:
            raise UsageError(
                f"an operation takes tensors of one type, not {dtype} and {tensor.dtype}"
            )

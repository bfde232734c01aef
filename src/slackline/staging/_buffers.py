"""The host memory of an operation's tensors: a tensor's own memory, or a contiguous copy's.

Copies run on threads that are not in the caller's inference mode. Each copy enters this mode
itself, since only so may it write a tensor that the caller made there. The version counters of all
other tensors still count the write.
"""

from typing import Protocol

import torch

from slackline.staging._plain import check_distinct, is_plain, plain_copy

__all__ = ["PIECE_BYTES", "Buffers", "HostBuffers", "flat"]

PIECE_BYTES = 4 << 20
"""The size in bytes of a piece of a long tensor on a device: enough for copies and transfers at
full rate."""


class Buffers(Protocol):
    """The contiguous host memory of one operation's tensors.

    The caller must keep the object until the operation ends.
    """

    def source(self, tensor: torch.Tensor) -> int:
        """Return the address from which an operation reads the tensor's contiguous elements."""

    def temporary(self, tensor: torch.Tensor) -> int:
        """Return the address of a temporary tensor's elements, and keep the tensor alive."""

    def target(self, tensor: torch.Tensor) -> int:
        """Return the address to which an operation writes the tensor's elements."""

    def in_place(self, tensor: torch.Tensor) -> int:
        """Return the address of a tensor's elements that an operation reads and overwrites."""


class HostBuffers:
    """The memory of an operation's CPU tensors; only non-contiguous tensors are copied."""

    __slots__ = ("_kept", "_results")

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []
        self._results: list[tuple[torch.Tensor, torch.Tensor]] = []

    def source(self, tensor: torch.Tensor) -> int:
        return self._keep(tensor if is_plain(tensor) else plain_copy(tensor))

    def temporary(self, tensor: torch.Tensor) -> int:
        return self._keep(tensor.contiguous())

    def target(self, tensor: torch.Tensor) -> int:
        if is_plain(tensor):
            return self._keep(tensor)
        check_distinct(tensor)
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        return self._beside(tensor, copy)

    def in_place(self, tensor: torch.Tensor) -> int:
        if is_plain(tensor):
            return self._keep(tensor)
        check_distinct(tensor)
        return self._beside(tensor, plain_copy(tensor))

    @property
    def copies_back(self) -> bool:
        """True if `copy_back` has anything to copy."""
        return bool(self._results)

    def copy_back(self) -> None:
        """Copy results to their tensors; to be called once after success, on any thread."""
        with torch.inference_mode():
            for tensor, copy in self._results:
                tensor.copy_(copy)

    def _keep(self, tensor: torch.Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()

    def _beside(self, tensor: torch.Tensor, copy: torch.Tensor) -> int:
        self._results.append((tensor, copy))
        return copy.data_ptr()


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's elements in one dimension: a view if `is_plain`, else a copy."""
    return (tensor.detach() if is_plain(tensor) else plain_copy(tensor)).view(-1)

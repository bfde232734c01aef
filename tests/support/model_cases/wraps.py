"""The ways to run a part of a drawn model: checkpointed, in mixed precision, gated, cut off."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model_cases.parts import Note

__all__ = ["WRAPS"]


class _Wrap(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


class Checkpoint(_Wrap):
    def forward(self, h: Tensor, note: Note) -> Tensor:
        found: Tensor = checkpoint(self.inner, h, note, use_reentrant=False)
        return found


class Reentrant(_Wrap):
    """A checkpoint of the older kind, which runs a backward within the backward."""

    def forward(self, h: Tensor, note: Note) -> Tensor:
        # Without an input that needs a gradient, this checkpoint would drop those of the weights.
        found: Tensor = (
            checkpoint(self.inner, h, note, use_reentrant=True)
            if h.requires_grad
            else self.inner(h, note)
        )
        return found


class Autocast(_Wrap):
    def forward(self, h: Tensor, note: Note) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(h, note).float()


class GatedByData(_Wrap):
    """A part that is used only where the first value of the microbatch is positive."""

    def forward(self, h: Tensor, note: Note) -> Tensor:
        return self.inner(h, note) if h.detach()[0, 0, 0] > 0 else h


class GatedByNumber(_Wrap):
    """A part that every second microbatch uses."""

    def forward(self, h: Tensor, note: Note) -> Tensor:
        return self.inner(h, note) if note.microbatch % 2 else h


class Beside(_Wrap):
    """A part that learns beside the main path and gives no gradient to the parts before it."""

    def forward(self, h: Tensor, note: Note) -> Tensor:
        return h + self.inner(h.detach(), note)


class Cut(_Wrap):
    """A part before which the path of the gradients ends."""

    def forward(self, h: Tensor, note: Note) -> Tensor:
        found: Tensor = self.inner(h.detach(), note)
        return found


class WithoutGradients(_Wrap):
    """A part that runs within torch.no_grad, beside the main path."""

    def forward(self, h: Tensor, note: Note) -> Tensor:
        with torch.no_grad():
            found = self.inner(h, note)
        return h + found


class Frozen(_Wrap):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__(inner.requires_grad_(False))

    def forward(self, h: Tensor, note: Note) -> Tensor:
        found: Tensor = self.inner(h, note)
        return found


WRAPS: Mapping[str, Callable[[nn.Module], nn.Module]] = MappingProxyType(
    {
        "frozen": Frozen,
        "checkpoint": Checkpoint,
        "reentrant": Reentrant,
        "autocast": Autocast,
        "gated-by-data": GatedByData,
        "gated-by-number": GatedByNumber,
        "beside": Beside,
        "cut": Cut,
        "without-gradients": WithoutGradients,
    }
)
"""The wrapping classes by the names that cases use."""

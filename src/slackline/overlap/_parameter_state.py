"""One parameter's gradient: where it lies, and how far its reduction has come.

            post              wait
    LOCAL ────────▶ POSTED ────────▶ REDUCED
      ▲                                 │
      └──── cleared, or stashed ────────┘

The gradient lies in a flat buffer of the exchange, one element longer than the gradient: the last
one is 1 where the rank has a gradient and 0 where it has none, and is reduced along with it. So
each rank learns without another message whether any rank used the parameter. A GradientGroup posts
it and waits for it, alone or with its neighbours in memory.
"""

import ctypes
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from slackline.errors import UsageError

if TYPE_CHECKING:
    from slackline.overlap._gradient_group import GradientGroup

__all__ = ["Clear", "Phase", "ParameterState", "Use", "clear_grad", "flat_request"]


class Phase(Enum):
    """How far a reduction has come."""

    LOCAL = "the gradient, if any, is this rank's own"
    POSTED = "the exchange owns the buffer"
    REDUCED = "the buffer holds the reduced gradient"


class Use(Enum):
    """Which ranks have had a gradient of a parameter, as far as reductions have told."""

    EVERYWHERE = "all ranks, in every step"
    NOWHERE = "no rank, in any step since the first that told"
    SOMEWHERE = "some ranks, or in some steps"


class Clear(Enum):
    """What `zero_grad` asked for while the gradient was still to be used."""

    NO = "nothing"
    NONE = "set it to None"
    ZERO = "fill it with zeros"


_LONG = 1 << 16
"""Bytes from which on it pays to copy a gradient by itself, while the processor's cache has it."""
_CELLS: dict[int, Any] = {
    1: ctypes.c_uint8,
    2: ctypes.c_uint16,
    4: ctypes.c_uint32,
    8: ctypes.c_uint64,
}


def flat_request(parameter: Tensor) -> tuple[int, torch.dtype]:
    """The length and type of the parameter's flat buffer."""
    parts = 2 if parameter.is_complex() else 1
    return parameter.numel() * parts + 1, parameter.dtype.to_real()


def clear_grad(parameter: Tensor, *, set_to_none: bool) -> None:
    """Do what torch's `zero_grad` does to one parameter."""
    grad = parameter.grad
    if grad is None or set_to_none:
        parameter.grad = None
        return
    if grad.grad_fn is not None:
        parameter.grad = grad = grad.detach()
    grad.requires_grad_(False).zero_()


class ParameterState:
    """The gradient of one parameter. Used by one thread at a time."""

    def __init__(
        self,
        index: int,
        name: str,
        group: int,
        parameter: Tensor,
        flat: Tensor,
        block: int,
        *,
        most: float,
    ) -> None:
        """`flat` is the buffer of `flat_request`, in the exchange's allocation number `block`.

        `most`: from it on, the reduced last element says that all ranks have a gradient.
        """
        self.index = index
        self.name = name
        self.group = group
        """The number of the parameter's group in its optimizer."""
        self.parameter = parameter
        self.priority = index
        self.phase = Phase.LOCAL
        self.posted = False
        """Whether its reduction has been posted since the last step."""
        self.arrived = False
        """Whether autograd has brought a gradient since the last step."""
        self.armed = False
        """Whether the next gradient only has to be counted."""
        self.gradient_group: GradientGroup
        """The group that it is reduced in. The reducer sets it, and these callbacks:"""
        self.before_gradient: Callable[[ParameterState], None]
        """Autograd is about to add to a gradient that is not this rank's own."""
        self.on_gradient: Callable[[ParameterState], None]
        """Autograd has brought a gradient, and it was not armed."""
        self.on_last_gradient: Callable[[GradientGroup], None]
        """The gradients of a group's members have all come."""
        self.posting: GradientGroup | None = None
        """The group that has posted it and has not been waited for."""
        self.block = block
        self.extra = False
        """Whether gradients came after its reduction had been posted in this step."""
        self.due = False
        """Whether a step waits for the gradient."""
        self.batch: list[ParameterState] = []
        """While a step does: the parameters that take it together."""
        self.clear_later = Clear.NO
        self.use = Use.EVERYWHERE
        self.grad: Tensor | None = None
        """What the step uses: the reduced gradient, None where no rank has one."""
        self.flat: Tensor
        """Where the gradient lies, with its presence behind it."""
        self._nbytes = flat.numel() * flat.itemsize
        self.copied_at_once = self._nbytes >= _LONG and flat.device.type == "cpu"
        """Whether `copy` is to be called for each gradient when it has come."""
        self._present = False
        self._version = 0
        """Of the gradient in memory when it was posted."""
        self._accumulates = False
        self._stashed: Tensor | None = None
        self._cell: Any = None
        self.place(flat)
        if self._cell is not None:
            # As whole numbers of their size, floats above zero are in the same order.
            flat[-1] = most
            self._most: int = self._cell.value
            flat[-1] = 1
            self._one: int = self._cell.value

    def place(self, flat: Tensor) -> None:
        """Have the gradient lie in another buffer, of zeros. It must not be visible in the last."""
        assert self.posting is None
        self.flat = flat
        self.grad = None
        self._view = self._make_view()
        self._address = self._view.data_ptr()
        if flat.device.type == "cpu":
            last = flat.data_ptr() + (flat.numel() - 1) * flat.itemsize
            self._cell = _CELLS[flat.itemsize].from_address(last)

    @property
    def nbytes(self) -> int:
        """What a reduction carries."""
        return self._nbytes

    def done(self) -> bool:
        """Whether `wait` would not block."""
        return self.posting is None or self.posting.done()

    def copy(self) -> None:
        """Copy a gradient that has just come to where it will be reduced."""
        grad = self.parameter.grad
        if (
            self.phase is Phase.LOCAL
            and grad is not None
            and grad is not self._view
            and not grad.requires_grad
        ):
            targets: list[Tensor] = []
            sources: list[Tensor] = []
            self.load(targets, sources)
            for target, source in zip(targets, sources, strict=True):
                target.copy_(source)

    def load(self, targets: list[Tensor], sources: list[Tensor]) -> None:
        """Add where the gradient must be copied and from where; nothing where it lies there.

        The flat buffer says from now on whether this rank has a gradient; where it has none, the
        buffer is zeros.
        """
        parameter, view = self.parameter, self._view
        grad = parameter.grad
        self._present = present = grad is not None
        if self._cell is not None:
            self._cell.value = self._one if present else 0
        else:
            self.flat[-1:].fill_(float(present))
        if grad is None:
            view.zero_()
            return
        if view.data_ptr() != self._address:
            self._view = view = self._make_view()
        elif grad is view:
            return
        if grad.layout is not torch.strided:
            raise UsageError(f"the gradient of {self.name!r} must be dense, not {grad.layout}")
        try:
            parameter.grad = view
        except RuntimeError as error:
            raise UsageError(
                f"the gradient of {self.name!r} must stay {view.dtype} on {view.device} as it "
                f"was when the model was wrapped, not become {grad.dtype} on {grad.device}"
            ) from error
        targets.append(view)
        sources.append(grad.detach() if grad.requires_grad else grad)

    def post(self, posting: "GradientGroup") -> None:
        """Note that the group has posted what `load` has prepared."""
        self.posting = posting
        self._version = self._view._version
        self.phase = Phase.POSTED
        self.posted = True

    def wait(self) -> None:
        """Block until the reduction is done, then show its result as the parameter's grad."""
        if self.posting is not None:
            self.posting.wait()

    def reduced(self) -> None:
        """Show the result of a reduction that has ended as the parameter's grad.

        Where more gradients of this rank have come meanwhile, the result is stashed instead. Raises
        UsageError if the gradient was written to while it was reduced.
        """
        written = self._view._version != self._version
        self.posting = None
        self.phase = Phase.REDUCED
        if self._accumulates:
            self._accumulates = False
            more = self.parameter.grad
            self._show()
            if more is not None and more is not self._view:
                self.stash()
                self.parameter.grad = more
        else:
            self._show()
        if written:
            raise UsageError(
                f"the gradient of {self.name!r} was written to while it was being reduced: "
                "read it through the model or the optimizer, or call synchronize() before"
            )

    def told(self) -> Use:
        """Return which ranks had a gradient in the reduction that has just ended.

        Only for gradients in the processor's memory.
        """
        if self._cell.value >= self._most:
            return Use.EVERYWHERE
        return Use.SOMEWHERE if self._cell.value else Use.NOWHERE

    def _show(self) -> None:
        used = self._present or self._anybody()
        if self._stashed is not None:
            with torch.no_grad():
                self._view.add_(self._stashed)
            self._stashed, used = None, True
        self.grad = grad = self._view if used else None
        if self.clear_later is Clear.NO and self.parameter.grad is not grad:
            self.parameter.grad = grad

    def stash(self) -> None:
        """Put a reduced gradient aside while this rank accumulates more; later both are added."""
        assert self.posting is None
        grad = self.parameter.grad
        if grad is not None:
            self._stashed = grad.detach().clone()
            self._view.zero_()
            self.parameter.grad = self._view
        self.phase = Phase.LOCAL
        self.grad = None

    def unstash(self) -> None:
        """Undo `stash`, where no gradient has come after it."""
        self.phase = Phase.REDUCED
        if self._stashed is not None:
            self._view.copy_(self._stashed)
            self._stashed = None
            self.grad = self.parameter.grad = self._view

    def accumulate_locally(self) -> None:
        """Have autograd accumulate in memory of its own while the buffer is being reduced."""
        self._accumulates = True
        if self.parameter.grad is self._view:
            self.parameter.grad = None

    def wait_and_stash(self) -> None:
        """Wait for the reduction and stash its result; the gradient is this rank's own again."""
        self.wait()
        if self.phase is not Phase.LOCAL:
            self.stash()

    def clear_gradient(self, how: Clear) -> None:
        """Clear the gradient now. It must not be POSTED."""
        assert self.posting is None
        self._stashed = None
        self._accumulates = False
        self.grad = None
        self.phase = Phase.LOCAL
        self.clear_later = Clear.NO
        if how is Clear.NONE:
            self.parameter.grad = None
        else:
            clear_grad(self.parameter, set_to_none=False)

    def detach(self) -> None:
        """Move a visible gradient out of the exchange's memory, which is about to be freed."""
        grad = self.parameter.grad
        if grad is not None and grad.data_ptr() == self._address:
            self.parameter.grad = grad.detach().clone()

    def _make_view(self) -> Tensor:
        body = self.flat[:-1]
        parameter = self.parameter
        if parameter.is_complex():
            body = torch.view_as_complex(body.view(-1, 2))
        return body.as_strided(parameter.shape, parameter.stride())

    def _anybody(self) -> bool:
        if self._cell is not None:
            return bool(self._cell.value != 0)
        return bool(self.flat[-1].item() != 0)

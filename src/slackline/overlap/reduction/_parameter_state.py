"""The gradient of one parameter: its buffer, and the phase of its reduction.

            post              wait
    LOCAL ────────▶ POSTED ────────▶ REDUCED
      ▲                                 │
      └─── cleared, or set aside ───────┘

The gradient lies in a flat buffer of the exchange that is one element longer than the gradient. The
final element is 1 if the rank has a gradient and 0 if not, and is reduced along with the gradient.
Each rank thus learns without another message whether any rank used the parameter. A GradientGroup
posts the buffer's reduction and waits for its end, alone or together with adjacent buffers.
"""

import ctypes
import sys
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch import Tensor

from slackline.errors import UsageError

__all__ = ["ParameterState", "Phase", "Use", "clear_grad", "flat_request", "marks"]


class Phase(Enum):
    """The phase of a gradient's reduction: not posted, in flight, or done."""

    LOCAL = "the gradient, if any, is this rank's own"
    POSTED = "the exchange owns the buffer"
    REDUCED = "the buffer holds the reduced gradient"


class Use(Enum):
    """The set of ranks that have had a gradient of a parameter, as seen in finished reductions."""

    EVERYWHERE = "all ranks, in every step"
    NOWHERE = "no rank, in any step since the first that told"
    SOMEWHERE = "some ranks, or in some steps"


_LONG = 1 << 16
"""The bytes from which a gradient is copied at once, while it is in the processor's cache.

Smaller gradients are copied together when their group is posted.
"""
_CELLS: dict[int, Any] = {
    1: ctypes.c_uint8,
    2: ctypes.c_uint16,
    4: ctypes.c_uint32,
    8: ctypes.c_uint64,
}


@cache
def marks(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return 0 and 1 on a device, of which one is the final element of each buffer there."""
    return torch.tensor([0, 1], dtype=dtype, device=device)


@cache
def _number(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a number as a tensor of one element."""
    return torch.tensor([count], dtype=dtype, device=device)


@cache
def _bits(count: int, dtype: torch.dtype) -> int:
    """Return the bits of a number as an element of a buffer, as an unsigned integer."""
    memory = _number(count, dtype, torch.device("cpu"))
    return int.from_bytes(ctypes.string_at(memory.data_ptr(), dtype.itemsize), sys.byteorder)


def flat_request(parameter: Tensor) -> tuple[int, torch.dtype]:
    """Return the number of elements and the type of the parameter's flat buffer."""
    parts = 2 if parameter.is_complex() else 1
    return parameter.numel() * parts + 1, parameter.dtype.to_real()


def clear_grad(parameter: Tensor, *, set_to_none: bool) -> None:
    """Clear one parameter's gradient as torch's `zero_grad` does."""
    grad = parameter.grad
    if grad is None or set_to_none:
        parameter.grad = None
        return
    if grad.grad_fn is not None:
        parameter.grad = grad = grad.detach()
    grad.requires_grad_(False).zero_()


class ParameterState:
    """The gradient of one parameter; one thread at a time may use the object."""

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
        """Create the state of a parameter's gradient; no reduction of the gradient is posted yet.

        `flat` is the exchange's buffer as `flat_request` describes it, and `block` the number of
        its allocation. If the reduced final element is at least `most`, all ranks have a gradient.
        """
        self.index = index
        self.name = name
        self.group = group
        """The index of the parameter's group in the optimizer's `param_groups`."""
        self.parameter = parameter
        self.priority = index
        self.phase = Phase.LOCAL
        self.block = block
        self.use = Use.EVERYWHERE
        self.grad: Tensor | None = None
        """The gradient that the step uses: the reduced one, or None if no rank has any."""
        self.flat: Tensor
        """The gradient's flat buffer; its final element tells whether the rank has a gradient."""
        self._nbytes = flat.numel() * flat.itemsize
        self.copied_at_once = self._nbytes >= _LONG and flat.device.type == "cpu"
        """True if `copy` must be called as soon as a gradient has arrived."""
        self._present = False
        self._version = 0
        """torch's version counter of the buffer's view when the gradient was posted."""
        self._accumulates = False
        self._stashed: Tensor | None = None
        self._cell: Any = None
        self.place(flat)
        if self._cell is not None:
            # Floats above zero compare like the integers with the same bits, which are faster.
            flat[-1] = most
            self._most: int = self._cell.value
            flat[-1] = 1
            self._one: int = self._cell.value

    def place(self, flat: Tensor) -> None:
        """Move the gradient to `flat`, a buffer of zeros; no reduction may be in flight.

        The parameter's `grad` must not be a view of the old buffer.
        """
        assert self.phase is not Phase.POSTED
        self.flat = flat
        self.grad = None
        self._view = self._make_view()
        self._address = self._view.data_ptr()
        if flat.device.type == "cpu":
            last = flat.data_ptr() + (flat.numel() - 1) * flat.itemsize
            self._cell = _CELLS[flat.itemsize].from_address(last)
        else:
            self._last = flat[-1:]

    @property
    def nbytes(self) -> int:
        """The bytes of the gradient's buffer, which a reduction carries."""
        return self._nbytes

    @property
    def values(self) -> Tensor:
        """The gradient's elements in the buffer; changes of this tensor are no user's changes."""
        elements: Tensor = self.flat.data[:-1]  # `data` has a version counter of its own.
        return elements

    @property
    def reduced_before(self) -> bool:
        """Whether a reduced gradient is kept, to which further ones are added."""
        return self.phase is not Phase.LOCAL or self._stashed is not None

    def copy(self) -> None:
        """Copy a gradient that has just arrived to its buffer, unless it is there already."""
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
        """Prepare the buffer for a reduction; the caller then copies `sources` to `targets`.

        If the gradient is not in the buffer yet, appends the gradient to `sources` and the buffer's
        view to `targets`, and makes the view the parameter's `grad`. Sets the final element, on a
        device as one more copy, and fills the buffer with zeros if this rank has no gradient.
        Raises UsageError for a gradient of another layout, type or device.
        """
        parameter, view = self.parameter, self._view
        grad = parameter.grad
        if grad is None:
            self._present = False
            self._tell(0, targets, sources)
            view.zero_()
            return
        self._present = True
        if self._cell is not None:
            self._cell.value = self._one
        else:
            self._tell(1, targets, sources)
        if view.data_ptr() != self._address:
            self._view = view = self._make_view()
        elif grad is view:
            return
        if grad.layout is not torch.strided:
            raise UsageError(f"the gradient of {self.name!r} must be dense, not {grad.layout}")
        try:
            parameter.grad = view
        except RuntimeError as error:
            raise self._unlike(grad) from error
        targets.append(view)
        sources.append(grad.detach() if grad.requires_grad else grad)

    def take(self) -> Tensor | None:
        """Return the parameter's `grad`; None takes its place.

        Raises UsageError for a gradient of another layout, type or device.
        """
        parameter = self.parameter
        grad = parameter.grad
        if grad is None:
            return None
        if grad.layout is not torch.strided:
            raise UsageError(f"the gradient of {self.name!r} must be dense, not {grad.layout}")
        if grad.dtype is not self._view.dtype:
            raise self._unlike(grad)
        parameter.grad = None
        return grad.detach() if grad.requires_grad else grad

    def body_in(self, flat: Tensor) -> Tensor:
        """Return the gradient's elements, in its shape, in a buffer of the same layout."""
        body = flat[:-1]
        parameter = self.parameter
        if parameter.is_complex():
            body = torch.view_as_complex(body.view(-1, 2))
        return body.as_strided(parameter.shape, parameter.stride())

    def tell(self, flat: Tensor, count: int, targets: list[Tensor], sources: list[Tensor]) -> None:
        """Set the final element of a buffer of the same layout: a number of ranks with a gradient.

        On a device the caller sets it: it copies `sources` to `targets`.
        """
        if self._cell is not None:
            last = flat.data_ptr() + (flat.numel() - 1) * flat.itemsize
            _CELLS[flat.itemsize].from_address(last).value = _bits(count, flat.dtype)
        else:
            targets.append(flat[-1:])
            sources.append(_number(count, flat.dtype, flat.device))

    def posted(self) -> None:
        """Record that the buffer that `load` has prepared is being reduced, until `reduced`."""
        self._version = self._view._version
        self.phase = Phase.POSTED

    def reduced(self, *, show: bool) -> bool:
        """Take the result of a finished reduction as the gradient that the step uses.

        With `show` it becomes the parameter's `grad`, too. Without, the caller does that before it
        updates the parameter. If more gradients of this rank have arrived meanwhile, the result is
        set aside instead. Returns whether the gradient was written to while it was reduced.
        """
        written: bool = self._view._version != self._version
        self.phase = Phase.REDUCED
        used = self._present or self._anybody()
        if self._stashed is not None:
            with torch.no_grad():
                self._view.add_(self._stashed)
            self._stashed, used = None, True
        self.grad = self._view if used else None
        if show or self._accumulates:
            self._show()
        return written

    def told(self) -> Use:
        """Return the set of ranks that had a gradient in the reduction that has just ended.

        The gradient must be in the CPU's memory.
        """
        if self._cell.value >= self._most:
            return Use.EVERYWHERE
        return Use.SOMEWHERE if self._cell.value else Use.NOWHERE

    def _show(self) -> None:
        """Make the reduced gradient the parameter's `grad`, or set it aside for a further one."""
        accumulates, self._accumulates = self._accumulates, False
        more = self.parameter.grad if accumulates else None
        if self.parameter.grad is not self.grad:
            self.parameter.grad = self.grad
        if more is not None and more is not self._view:
            self.stash()
            self.parameter.grad = more

    def stash(self) -> None:
        """Save a reduced gradient while this rank accumulates a further one.

        `reduced` adds the saved gradient and the further one.
        """
        assert self.phase is not Phase.POSTED
        grad = self.parameter.grad
        if grad is not None:
            self._stashed = grad.detach().clone()
            self._view.zero_()
            self.parameter.grad = self._view
        self.phase = Phase.LOCAL
        self.grad = None

    def unstash(self) -> None:
        """Restore the reduced gradient that `stash` has saved, if no further gradient arrived."""
        self.phase = Phase.REDUCED
        if self._stashed is not None:
            self._view.copy_(self._stashed)
            self._stashed = None
            self.grad = self.parameter.grad = self._view

    def accumulate_locally(self) -> None:
        """Let autograd accumulate in memory of its own while the buffer is being reduced."""
        self._accumulates = True
        if self.parameter.grad is self._view:
            self.parameter.grad = None

    def clear_gradient(self, *, set_to_none: bool) -> None:
        """Clear the parameter's gradient at once; no reduction of it may be in flight."""
        assert self.phase is not Phase.POSTED
        self._stashed = None
        self._accumulates = False
        self.grad = None
        self.phase = Phase.LOCAL
        if set_to_none:
            self.parameter.grad = None
        else:
            clear_grad(self.parameter, set_to_none=False)

    def detach(self) -> None:
        """Copy the parameter's `grad` out of the exchange's memory, which is about to be freed."""
        grad = self.parameter.grad
        if grad is not None and grad.data_ptr() == self._address:
            self.parameter.grad = grad.detach().clone()

    def _unlike(self, grad: Tensor) -> UsageError:
        view = self._view
        return UsageError(
            f"the gradient of {self.name!r} must stay {view.dtype} on {view.device} as it was when "
            f"the model was wrapped, not become {grad.dtype} on {grad.device}"
        )

    def _make_view(self) -> Tensor:
        return self.body_in(self.flat)

    def _tell(self, present: int, targets: list[Tensor], sources: list[Tensor]) -> None:
        """Set the buffer's final element, which tells the other ranks of a gradient.

        On a device the caller's copies set it: a kernel of its own for each parameter would take
        longer to start than to run.
        """
        if self._cell is not None:
            self._cell.value = self._one if present else 0
        else:
            targets.append(self._last)
            sources.append(marks(self.flat.dtype, self.flat.device)[present : present + 1])

    def _anybody(self) -> bool:
        if self._cell is not None:
            return bool(self._cell.value != 0)
        return bool(self.flat[-1].item() != 0)

"""The type in which gradients travel: fp32 gradients may be rounded to bf16 for their reduction.

    flat (fp32)  ──round──▶ copy (bf16) ──reduction──▶ copy (bf16) ──widen──▶ flat (fp32)
                 post                                               wait

Each rank's gradient is rounded once, to nearest even. The ranks' sum is computed in fp32, in the
order of the ranks, and is rounded once more; an average is divided before that rounding.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from slackline.errors import UsageError
from slackline.overlap.exchange._pending import Pending

__all__ = ["MOST_RANKS", "check_communicate", "check_ranks", "narrowed", "sent_as", "sent_type"]

MOST_RANKS = 256
"""The most ranks whose gradients travel as bf16. The ranks with a gradient are counted in an
element of the gradient's buffer, and bf16 has every whole number only up to 256."""


def check_communicate(communicate: object) -> None:
    """Raise UsageError unless `communicate` is a value of that option of DataParallel."""
    if communicate is not None and communicate is not torch.bfloat16:
        raise UsageError(f"communicate must be torch.bfloat16 or None, not {communicate!r}")


def check_ranks(communicate: torch.dtype | None, ranks: int) -> None:
    """Raise UsageError if `communicate` is given for more than MOST_RANKS ranks."""
    if communicate is not None and ranks > MOST_RANKS:
        raise UsageError(
            f"communicate={communicate} must be used with at most {MOST_RANKS} ranks, not {ranks}: "
            "the ranks with a gradient are counted, and bf16 has no larger whole number exactly"
        )


def sent_type(dtype: torch.dtype, communicate: torch.dtype | None) -> torch.dtype:
    """Return the type in which a gradient of the real type `dtype` travels.

    With `communicate` an fp32 gradient travels in that type, and a gradient of 16 bits unchanged.
    Raises UsageError for a wider gradient, of which too little would be left.
    """
    if communicate is None or dtype.itemsize == communicate.itemsize:
        return dtype
    if dtype is not torch.float32:
        raise UsageError(
            f"communicate={communicate} must be used with gradients of float32 or of 16 bits, "
            f"not {str(dtype).removeprefix('torch.')}"
        )
    return communicate


def sent_as(flat: Tensor, communicate: torch.dtype | None, ranks: int) -> torch.dtype:
    """Return the type in which a gradient's flat tensor travels; its own if there is one rank."""
    return flat.dtype if ranks == 1 else sent_type(flat.dtype, communicate)


def narrowed(
    post: Callable[[int], Pending], flat: Tensor, sent: Tensor
) -> Callable[[int], Pending]:
    """Return a function that rounds `flat` to `sent` and calls `post`, which reduces `sent`.

    The Pending that it returns copies the result back to `flat` when `wait` is called first.
    """

    def round_and_post(priority: int) -> Pending:
        sent.copy_(flat)
        return _Widening(post(priority), flat, sent)

    return round_and_post


class _Widening:
    """A posted reduction of `sent` whose result `wait` copies to `flat`, once."""

    def __init__(self, pending: Pending, flat: Tensor, sent: Tensor) -> None:
        self._pending = pending
        self._flat, self._sent = flat, sent
        self._widened = False

    @property
    def ended_ns(self) -> int:
        """The end of the reduction, before the copy to `flat`; see Pending."""
        return self._pending.ended_ns

    def done(self) -> bool:
        """Return whether the reduction has ended; `wait` then only copies the result."""
        return self._pending.done()

    def wait(self) -> None:
        """Block until the reduction has ended; the first call then copies the result to `flat`."""
        self._pending.wait()
        if not self._widened:
            self._widened = True
            self._flat.copy_(self._sent)

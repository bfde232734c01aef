"""A gradient exchange on any torch process group, for gradients outside the CPU's memory."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch import distributed as dist

from slackline.overlap.exchange._layout import laid_out, spanned, zeros
from slackline.overlap.exchange._pending import Pending

__all__ = ["ProcessGroupExchange"]


class _Posted:
    """A posted reduction that wraps a torch Work; the function `after` runs at its end."""

    def __init__(
        self, work: dist.Work, after: Callable[[], object] | None, *, notes_end: bool
    ) -> None:
        """Wrap `work`; `notes_end` needs a Future that is complete at the end of the reduction."""
        self._work = work
        self._after = after
        self._ends: list[int] | None = [] if notes_end else None
        """The times by which the reduction had ended; None if no time can be known."""
        if self._ends is not None:
            work.get_future().add_done_callback(partial(_note_end, self._ends))

    @property
    def ended_ns(self) -> int:
        """The end of the reduction by the monotonic clock; 0 while pending, or if not known."""
        return min(self._ends, default=0) if self._ends else 0

    def done(self) -> bool:
        return bool(self._work.is_completed())

    def wait(self) -> None:
        self._work.wait()
        if self._ends is not None:  # The Future's callback may still wait for the GIL.
            self._ends.append(time.monotonic_ns())
        if self._after is not None:
            self._after()
            self._after = None


class ProcessGroupExchange:
    """A gradient exchange on a torch process group; all ranks must post in the same order."""

    matches_by_key = False
    notes_ends = False

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        """Reduce tensors on `device` over a process group."""
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        # With two ranks, the sums in both orders of the terms are bit-identical.
        self.rank_ordered = self.size <= 2
        self._group = group
        self._device = device
        self._averages = dist.get_backend(group) in ("slackline", "nccl")
        self._root = dist.get_global_rank(group, 0) if group is not None else 0

    def allocate(self, requests: Sequence[tuple[int, torch.dtype]]) -> list[Tensor]:
        return zeros(requests, self._device)

    def span(self, first: Tensor, last: Tensor) -> Tensor:
        return spanned(first, last)

    def rearrange(self, flats: Sequence[Tensor]) -> list[Tensor]:
        return laid_out(flats)

    def release(self) -> None:
        """Do nothing: the flat tensors own their memory."""

    def reduction(
        self, key: int, flat: Tensor, *, average: bool, exact: bool = False
    ) -> Callable[[int], Pending]:
        native = average and self._averages
        op = dist.ReduceOp.AVG if native else dist.ReduceOp.SUM

        def divide() -> None:
            flat.div_(self.size)

        def post(priority: int) -> Pending:
            work = dist.all_reduce(flat, op, group=self._group, async_op=True)
            assert work is not None
            after = divide if average and not native else None
            # On an accelerator the Future is complete when the reduction is launched.
            notes_end = self.notes_ends and self._device.type == "cpu"
            return _Posted(work, after, notes_end=notes_end)

        return post

    def sent_bytes(self, flat: Tensor) -> int:
        return flat.numel() * flat.itemsize

    def agree(self, key: int, bits: Tensor) -> None:
        seen = bits.to(self._device)
        dist.all_reduce(seen, dist.ReduceOp.MAX, group=self._group)
        bits.copy_(seen)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            if tensor.numel():
                flat = tensor.as_strided((tensor.numel(),), (1,))
                dist.broadcast(flat, self._root, group=self._group)

    def share(self, text: bytes) -> list[bytes]:
        texts: list[bytes] = [b""] * self.size
        dist.all_gather_object(texts, text, group=self._group)
        return texts

    def rails(self) -> tuple[str, ...]:
        return ()


def _note_end(ends: list[int], _: object) -> None:
    """Add the present time to `ends`."""
    ends.append(time.monotonic_ns())

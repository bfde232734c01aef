"""What the overlap needs of a group of ranks, and how a NIC engine's group gives it."""

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from slackline.errors import UsageError
from slackline.overlap._layout import layout
from slackline.wire import DType, ReduceOp

if TYPE_CHECKING:
    from slackline.nic import Group

__all__ = ["Exchange", "NicExchange", "Pending", "wire_type"]

_TYPES = {
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
}


class Pending(Protocol):
    """A posted reduction."""

    def done(self) -> bool:
        """Whether it has ended. Never blocks."""

    def wait(self) -> None:
        """Blocks until it has ended; raises if it failed."""


class Exchange(Protocol):
    """A group of ranks as the overlap sees it. Only what `reduction` posts goes on by itself."""

    rank: int
    size: int
    matches_by_key: bool
    """Whether reductions meet by their key; if not, all ranks post them in the same order."""
    rank_ordered: bool
    """Whether the bits of a sum are the same whatever it is reduced together with."""

    def allocate(self, requests: Sequence[tuple[int, torch.dtype]]) -> list[Tensor]:
        """Flat tensors of the counts and types, in memory that the exchange can send from."""

    def span(self, first: Tensor, last: Tensor) -> Tensor:
        """The memory from one flat tensor of an allocation to a later one of its type, as one."""

    def rearrange(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """All flat tensors of one allocation on the same memory, in this order; they are zeros.

        What `flats` held is lost.
        """

    def release(self) -> None:
        """Gives back all memory of `allocate`."""

    def reduction(self, key: int, flat: Tensor, *, average: bool) -> Callable[[int], Pending]:
        """What posts a sum (or average) of `flat` over the ranks, in place, with a priority.

        Nobody touches `flat` between the posting and the end of what it returns.
        """

    def agree(self, key: int, bits: Tensor) -> None:
        """The maximum of a flat uint8 CPU tensor over the ranks, in place."""

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Rank 0's values into every rank's tensors; each must be dense in memory."""

    def share(self, text: bytes) -> list[bytes]:
        """Every rank's text, by rank."""

    def rails(self) -> tuple[str, ...]:
        """The rails that carried something, as far as it is known."""


def wire_type(dtype: torch.dtype) -> DType:
    """The engine's code for a gradient's type; raises UsageError where it has none."""
    if dtype not in _TYPES:
        known = ", ".join(str(known).removeprefix("torch.") for known in _TYPES)
        raise UsageError(f"a gradient's type must be one of {known}, not {dtype}")
    return _TYPES[dtype]


class NicExchange:
    """An engine's group: gradients lie in registered memory, reductions meet by their tag."""

    matches_by_key = True

    def __init__(self, group: "Group", keys: int) -> None:
        """Takes `keys` tags of the group for itself, the same ones on every rank."""
        self.rank = group.rank
        self.size = group.size
        self.rank_ordered = group.rank_ordered or group.size <= 2  # two have one order
        self._group = group
        self._first_tag = _take_tags(group, keys)
        self._blocks: list[int] = []

    def allocate(self, requests: Sequence[tuple[int, torch.dtype]]) -> list[Tensor]:
        sizes = [count * dtype.itemsize for count, dtype in requests]
        offsets, total = layout(sizes)
        if not total:
            return []
        block = self._group.allocate(total)
        self._blocks.append(block)
        ctypes.memset(block, 0, total)  # gaps are summed along with their neighbours
        return [
            _at(block + offset, count, dtype)
            for offset, (count, dtype) in zip(offsets, requests, strict=True)
        ]

    def span(self, first: Tensor, last: Tensor) -> Tensor:
        start, end = first.data_ptr(), last.data_ptr() + last.numel() * last.itemsize
        return _at(start, (end - start) // first.itemsize, first.dtype)

    def rearrange(self, flats: Sequence[Tensor]) -> list[Tensor]:
        offsets, total = layout([flat.numel() * flat.itemsize for flat in flats])
        block = min(flat.data_ptr() for flat in flats)
        ctypes.memset(block, 0, total)
        return [
            _at(block + offset, flat.numel(), flat.dtype)
            for offset, flat in zip(offsets, flats, strict=True)
        ]

    def release(self) -> None:
        while self._blocks:
            self._group.free(self._blocks.pop())

    def reduction(self, key: int, flat: Tensor, *, average: bool) -> Callable[[int], Pending]:
        address, count, dtype = flat.data_ptr(), flat.numel(), wire_type(flat.dtype)
        op = ReduceOp.AVG if average else ReduceOp.SUM
        tag = self._first_tag + key
        all_reduce = self._group.all_reduce

        def post(priority: int) -> Pending:
            return all_reduce(address, address, count, dtype, op, tag=tag, priority=priority)

        return post

    def agree(self, key: int, bits: Tensor) -> None:
        address = bits.data_ptr()
        tag = self._first_tag + key
        self._group.all_reduce(
            address, address, bits.numel(), DType.UINT8, ReduceOp.MAX, tag=tag, blocking=True
        )

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        posted = [
            self._group.broadcast(
                tensor.data_ptr(), tensor.numel() * tensor.itemsize, DType.UINT8, 0
            )
            for tensor in tensors
            if tensor.numel()
        ]
        for transfer in posted:
            transfer.wait()

    def share(self, text: bytes) -> list[bytes]:
        lengths = torch.zeros(self.size, dtype=torch.int64)
        mine = torch.tensor([len(text)])
        places = [lengths[rank:].data_ptr() for rank in range(self.size)]
        ones = [1] * self.size
        self._group.all_gather(mine.data_ptr(), places, ones, DType.INT64, blocking=True)
        counts: list[int] = lengths.tolist()
        texts = [ctypes.create_string_buffer(max(count, 1)) for count in counts]
        source = ctypes.create_string_buffer(text, max(len(text), 1))
        targets = [ctypes.addressof(buffer) for buffer in texts]
        self._group.all_gather(
            ctypes.addressof(source), targets, counts, DType.UINT8, blocking=True
        )
        return [buffer.raw[:count] for buffer, count in zip(texts, counts, strict=True)]

    def rails(self) -> tuple[str, ...]:
        sent = "_frames_sent"
        counters = self._group.counters()
        return tuple(
            sorted(
                name.removesuffix(sent)
                for name in counters
                if name.endswith(sent) and counters[name]
            )
        )


def _at(address: int, count: int, dtype: torch.dtype) -> Tensor:
    """A tensor over memory of the group; it must not be used longer than the group's engine lives.

    Who holds the exchange holds the engine. The tensor itself does not: what torch's storages hold
    is never let go of at the interpreter's end.
    """
    if not count:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer(
        (ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype=dtype
    )


def _take_tags(group: "Group", count: int) -> int:
    """The first of `count` tags that no other model on the group uses.

    The group itself remembers how many are taken: models are wrapped in the same order on all
    ranks, so that all ranks come to the same number.
    """
    first: int = getattr(group, "overlap_tags", 0)
    if first + count > 1 << 24:
        raise UsageError(f"a group has {1 << 24} tags and {first} are taken, not {count} more")
    group.overlap_tags = first + count  # type: ignore[attr-defined]
    return first

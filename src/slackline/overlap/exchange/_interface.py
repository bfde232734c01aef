"""The communication interface of gradient overlap, and its implementation on a NIC engine."""

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from slackline.backend.profiling import Facts, profiling, recorded_transfer
from slackline.errors import UsageError
from slackline.nic import Operation
from slackline.overlap.exchange._layout import layout
from slackline.overlap.exchange._narrow import narrowed, sent_as
from slackline.overlap.exchange._pending import Pending
from slackline.records import rails_of
from slackline.wire import DType, ReduceOp

if TYPE_CHECKING:
    from slackline.nic import Group, TimedTransfer, Transfer

__all__ = ["Exchange", "NicExchange", "tensor_at", "wire_type"]

_TYPES = {
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
}


class Exchange(Protocol):
    """The interface to a group of ranks that reduces gradients, over an engine or over torch.

    Reductions run in the background; `agree`, `broadcast` and `share` block.
    """

    rank: int
    size: int
    matches_by_key: bool
    """True if the ranks' reductions are matched by key; else all ranks post in the same order."""
    rank_ordered: bool
    """True if a sum is bit-identical whatever other gradients are in the same reduction."""
    notes_ends: bool
    """Whether reductions on the host state their ends. Over torch each note takes tens of
    microseconds, so only a receiver of step records asks for the ends, before the first reduction.
    """

    def allocate(self, requests: Sequence[tuple[int, torch.dtype]]) -> list[Tensor]:
        """Return a flat tensor of zeros for each (count, type), in memory for reductions.

        The exchange owns the memory until `release`.
        """

    def span(self, first: Tensor, last: Tensor) -> Tensor:
        """Return one flat tensor over the memory from `first` to the end of `last`.

        Both tensors must come from one `allocate` call and have one type; `first` lies first.
        """

    def rearrange(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """Lay out all flat tensors of one allocation again, in this order, on the same memory.

        Returns the new tensors, filled with zeros; the values of `flats` are lost.
        """

    def release(self) -> None:
        """Free all memory that `allocate` has returned."""

    def reduction(
        self, key: int, flat: Tensor, *, average: bool, exact: bool = False
    ) -> Callable[[int], Pending]:
        """Return a function that posts the sum (or average) of a flat tensor over the ranks.

        The reduction is done in place, in `flat`. If `matches_by_key`, the ranks' reductions with
        the same `key` are matched. The function takes a priority (a smaller number is more urgent)
        and returns the Pending. The caller must not touch `flat` until the Pending's `wait` has
        returned. With `exact` the elements travel in their own type even if gradients do not.
        """

    def sent_bytes(self, flat: Tensor) -> int:
        """Return the bytes of a gradient's flat tensor in the type in which it travels."""

    def agree(self, key: int, bits: Tensor) -> None:
        """Replace a flat uint8 CPU tensor by the elementwise maximum over the ranks. Blocks."""

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Copy rank 0's values into every rank's tensors, which must be dense. Blocks."""

    def share(self, text: bytes) -> list[bytes]:
        """Gather one byte string from each rank; return them in rank order. Blocks."""

    def rails(self) -> tuple[str, ...]:
        """Return the names of the rails (paths to peers) that have carried data, if known."""


def wire_type(dtype: torch.dtype) -> DType:
    """Return the engine's code for a gradient's element type; raise UsageError if it has none."""
    if dtype not in _TYPES:
        known = ", ".join(str(known).removeprefix("torch.") for known in _TYPES)
        raise UsageError(f"a gradient's type must be one of {known}, not {dtype}")
    return _TYPES[dtype]


class NicExchange:
    """A gradient exchange on a NIC engine's group.

    Gradients lie in memory that the engine has registered, and reductions are matched by tag.
    Gradients that travel in another type are copied to a second block of such memory.
    """

    matches_by_key = True
    notes_ends = True

    def __init__(
        self,
        group: "Group",
        keys: int,
        name: str = "",
        *,
        communicate: torch.dtype | None = None,
    ) -> None:
        """Reserve `keys` message tags of the group for reductions, the same tags on every rank.

        `name` is torch's name of the group, which torch's profiles show; empty without one.
        `communicate` is the type in which fp32 gradients travel, as `sent_type` takes it. If it is
        given, all gradients are summed in rank order, whatever the order of the group.
        """
        self.rank = group.rank
        self.size = group.size
        # With two ranks, the sums in both orders of the terms are bit-identical.
        self.rank_ordered = group.rank_ordered or group.size <= 2 or communicate is not None
        self._group = group
        self._communicate = communicate
        self._first_tag = group.tag_allocator.reserve_reductions(keys)
        self._blocks: dict[int, int] = {}
        """The address and the bytes of each block of memory with flat tensors."""
        self._copies: dict[int, int] = {}
        """The address of each block's second block, with the copies that travel."""
        self._name = name
        self._posted = [0] * keys
        """The number of reductions so far with each key; equal on all ranks after a step."""

    def allocate(self, requests: Sequence[tuple[int, torch.dtype]]) -> list[Tensor]:
        sizes = [count * dtype.itemsize for count, dtype in requests]
        offsets, total = layout(sizes)
        if not total:
            return []
        block = self._reserve(total)
        self._blocks[block] = total
        ctypes.memset(block, 0, total)  # reductions also sum the gaps between the tensors
        return [
            tensor_at(block + offset, count, dtype)
            for offset, (count, dtype) in zip(offsets, requests, strict=True)
        ]

    def span(self, first: Tensor, last: Tensor) -> Tensor:
        start, end = first.data_ptr(), last.data_ptr() + last.numel() * last.itemsize
        return tensor_at(start, (end - start) // first.itemsize, first.dtype)

    def rearrange(self, flats: Sequence[Tensor]) -> list[Tensor]:
        offsets, total = layout([flat.numel() * flat.itemsize for flat in flats])
        block = min(flat.data_ptr() for flat in flats)
        ctypes.memset(block, 0, total)
        return [
            tensor_at(block + offset, flat.numel(), flat.dtype)
            for offset, flat in zip(offsets, flats, strict=True)
        ]

    def release(self) -> None:
        while self._blocks:
            block, _ = self._blocks.popitem()
            if block in self._copies:
                self._free(self._copies.pop(block))
            self._free(block)

    def _reserve(self, nbytes: int) -> int:
        """Return the address of so much registered memory."""
        return self._group.allocate(nbytes)

    def _free(self, address: int) -> None:
        self._group.free(address)

    def reduction(
        self, key: int, flat: Tensor, *, average: bool, exact: bool = False
    ) -> Callable[[int], Pending]:
        communicate = None if exact else self._communicate
        sent = self._sent(flat, communicate)
        post = self._posting(key, sent, average=average, ordered=communicate is not None)
        return post if sent is flat else narrowed(post, flat, sent)

    def _sent(self, flat: Tensor, communicate: torch.dtype | None) -> Tensor:
        """Return the tensor whose elements travel: `flat`, or its copy in another type."""
        travels = sent_as(flat, communicate, self.size)
        return flat if travels is flat.dtype else self._copy_of(flat, travels)

    def _posting(
        self, key: int, sent: Tensor, *, average: bool, ordered: bool
    ) -> "Callable[[int], TimedTransfer]":
        """Return a function of the priority that posts a reduction in registered memory."""
        address, count, dtype = sent.data_ptr(), sent.numel(), wire_type(sent.dtype)
        op = ReduceOp.AVG if average else ReduceOp.SUM
        tag = self._first_tag + key
        return self._poster(
            key,
            sent,
            Operation.all_reduce(address, address, count, dtype, op, tag=tag, rank_order=ordered),
        )

    def _poster(
        self, key: int, sent: Tensor, operation: Operation
    ) -> "Callable[[int], TimedTransfer]":
        """Return a function of the priority that posts an operation with the key's tag."""
        prepared = self._group.prepare(operation)

        def post(priority: int) -> "TimedTransfer":
            sequence = self._posted[key]
            self._posted[key] = sequence + 1
            if not profiling():
                return prepared.post(priority=priority)
            posting = partial(prepared.post, priority=priority)
            return recorded_transfer(
                "all_reduce", posting, False, [sent], self._facts(key, sequence)
            )

        return post

    def sent_bytes(self, flat: Tensor) -> int:
        return flat.numel() * sent_as(flat, self._communicate, self.size).itemsize

    def _copy_of(self, flat: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the tensor of type `dtype` in which the elements of `flat` travel.

        It lies in the second block where `flat` lies in its own, so that no further memory is
        needed when other tensors of the block are reduced together.
        """
        address, width = flat.data_ptr(), flat.itemsize
        block = max(block for block in self._blocks if block <= address)
        if block not in self._copies:
            total = self._blocks[block] * dtype.itemsize // width
            self._copies[block] = self._reserve(total)
        offset = (address - block) // width * dtype.itemsize
        return tensor_at(self._copies[block] + offset, flat.numel(), dtype)

    def agree(self, key: int, bits: Tensor) -> None:
        at, count, tag = bits.data_ptr(), bits.numel(), self._first_tag + key
        sequence = self._posted[key]
        self._posted[key] = sequence + 1
        operation = Operation.all_reduce(at, at, count, DType.UINT8, ReduceOp.MAX, tag=tag)
        posting = partial(self._group.post, operation, blocking=True)
        if not profiling():
            posting()
            return
        recorded_transfer("all_reduce", posting, True, [bits], self._facts(key, sequence))

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        posted = [self._broadcast(tensor) for tensor in tensors if tensor.numel()]
        for transfer in posted:
            transfer.wait()

    def _broadcast(self, tensor: Tensor) -> "Transfer":
        nbytes = tensor.numel() * tensor.itemsize
        operation = Operation.broadcast(tensor.data_ptr(), nbytes, DType.UINT8, 0)
        posting = partial(self._group.post, operation)
        if not profiling():
            return posting()
        return recorded_transfer("broadcast", posting, False, [tensor], {"group": self._name})

    def _facts(self, key: int, sequence: int) -> Facts:
        """Return the names and values that a profile shows for a reduction."""
        return {"group": self._name, "tag": self._first_tag + key, "sequence": sequence}

    def share(self, text: bytes) -> list[bytes]:
        lengths = torch.zeros(self.size, dtype=torch.int64, device="cpu")
        mine = torch.tensor([len(text)], dtype=torch.int64, device="cpu")
        places = [lengths[rank:].data_ptr() for rank in range(self.size)]
        ones = [1] * self.size
        operation = Operation.all_gather(mine.data_ptr(), places, ones, DType.INT64)
        self._group.post(operation, blocking=True)
        counts: list[int] = lengths.tolist()
        texts = [ctypes.create_string_buffer(max(count, 1)) for count in counts]
        source = ctypes.create_string_buffer(text, max(len(text), 1))
        targets = [ctypes.addressof(buffer) for buffer in texts]
        at = ctypes.addressof(source)
        self._group.post(Operation.all_gather(at, targets, counts, DType.UINT8), blocking=True)
        return [buffer.raw[:count] for buffer, count in zip(texts, counts, strict=True)]

    def rails(self) -> tuple[str, ...]:
        return rails_of(self._group.counters())


def tensor_at(address: int, count: int, dtype: torch.dtype) -> Tensor:
    """Return a tensor over memory of the group, which is valid while the group's engine lives.

    The exchange keeps the engine alive; the tensor does not. A reference from a torch storage would
    never be released at the interpreter's exit.
    """
    if not count:
        return torch.empty(0, dtype=dtype, device="cpu")
    return torch.frombuffer(
        (ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype=dtype
    )

"""The state of a training as pages of bytes, and the sum of the pages' hashes.

    tensors   first.weight   first.bias  norm.weight   0/0/exp_avg   ...
              └─ page 1 ─┘└─ page 2 ─┘└────── page 3 ──────┘         page 0: names and shapes

Parameters, buffers and the optimizers' states lie one after the other in a fixed order. A page is a
part of a large tensor, or several small ones. The hash of the state is the sum, modulo 2**64 in
each half, of an XXH3 of 128 bits of each page with the page's number as its seed. So ranks can hash
some pages each, and the sum of their sums is the same for any division of the pages.
"""

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import is_
from typing import Any

import xxhash
from torch import Tensor, nn
from torch.optim import Optimizer

from slackline.overlap._partial_step import raw_groups
from slackline.overlap.reduction import LazyParameters

__all__ = ["HashedState", "Words", "content", "state_hash", "text_of"]

_PAGE = 1 << 20
"""The bytes of each page of a tensor that is longer."""
_FULL = 1 << 18
"""The bytes from which a page takes no further tensor."""

Words = tuple[int, int]
"""The two halves of a hash of 128 bits, each as an unsigned integer."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A range of bytes of a tensor."""

    tensor: Tensor
    first: int
    end: int
    memory: Any
    """The bytes as an object with the buffer protocol; None if they must be copied first."""


class _Found:
    """The tensors and values that belong to a state, and the tables in which they were found."""

    def __init__(self, tables: Sequence[Any] = ()) -> None:
        self.names: list[str] = []
        """The name of each tensor."""
        self.tensors: list[Tensor] = []
        self.others: list[tuple[str, object]] = []
        """The names and the values of entries that are no tensors."""
        self._sized = list(tables)
        self._sizes = list(map(len, tables))
        self._places: tuple[list[Any], list[Any], list[Any]] = [], [], []
        """The table, the key and the value of each entry."""

    def add(self, table: Any, key: object, name: str, value: object) -> None:
        """Add an entry of a table."""
        if isinstance(value, Tensor):
            self.names.append(name)
            self.tensors.append(value)
        else:
            self.others.append((name, value))
        self._watch(table, key, value)

    def watch(self, table: Any, key: object, value: Any) -> None:
        """Watch an entry that is a table itself, also for further entries."""
        self._watch(table, key, value)
        self._sized.append(value)
        self._sizes.append(len(value))

    def holds(self, tables: Sequence[Any]) -> bool:
        """Return whether the tables, which begin with these, have the same entries as before."""
        known = self._sized[: len(tables)]
        return (
            len(known) == len(tables) > 0
            and all(map(is_, known, tables))
            and list(map(len, self._sized)) == self._sizes
            and all(map(is_, map(dict.get, *self._places[:2]), self._places[2]))
        )

    def _watch(self, table: Any, key: object, value: object) -> None:
        for column, each in zip(self._places, (table, key, value), strict=True):
            column.append(each)


class HashedState:
    """The parameters, buffers and optimizer states of a training, in pages."""

    def __init__(self, module: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._modules = list(module.named_modules())
        self._optimizers = optimizers
        self._found = _Found()
        self._tensors: list[Tensor] = []
        self._addresses: list[int] = []
        self._labels = b""
        self._text = b""
        self._pages: list[list[_Piece]] = []
        self._starts: list[int] = []
        """The bytes before each page, the page of names and shapes first."""

    def refresh(self, replaced: Mapping[int, Tensor] | None = None) -> None:
        """Find the tensors that the training has now; their values are not read yet.

        `replaced` maps the `id` of a tensor to the tensor that is hashed in its place.
        """
        self._find()
        found = self._found
        tensors = found.tensors
        if replaced:
            tensors = [replaced.get(id(tensor), tensor) for tensor in tensors]
        addresses = list(map(Tensor.data_ptr, tensors))
        same = len(tensors) == len(self._tensors) and all(map(is_, tensors, self._tensors))
        if not same or addresses != self._addresses or not self._pages:
            self._tensors, self._addresses = tensors, addresses
            self._labels = "".join(
                f"{name} {tensor.dtype} {tuple(tensor.shape)};"
                for name, tensor in zip(found.names, tensors, strict=True)
            ).encode()
            self._pages = [[], *_pages(tensors)]
            sizes = [sum(piece.end - piece.first for piece in page) for page in self._pages]
            self._starts = list(accumulate(sizes, initial=0))
        others = (f"{name} {value!r};" for name, value in found.others)
        self._text = self._labels + "".join(others).encode()

    def part(self, number: int, count: int) -> range:
        """Return the pages of one part of the state, of `count` parts with about as many bytes."""
        total = max(self._starts[-1], 1)
        owners = [start * count // total for start in self._starts[:-1]]
        first = sum(owner < number for owner in owners)
        return range(first, first + owners.count(number))

    @property
    def pages(self) -> range:
        """All pages."""
        return range(len(self._pages))

    def digest(self, pages: Iterable[int]) -> Words:
        """Return the sum of the hashes of some pages, as the tensors are now."""
        low = high = 0
        for number in pages:
            hashed = xxhash.xxh3_128(self._text if number == 0 else b"", seed=number)
            for piece in self._pages[number]:
                hashed.update(_bytes(piece) if piece.memory is None else piece.memory)
            value = hashed.intdigest()
            low += value & 0xFFFFFFFFFFFFFFFF
            high += value >> 64
        return low & 0xFFFFFFFFFFFFFFFF, high & 0xFFFFFFFFFFFFFFFF

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and the tensor of each parameter, buffer and part of a state."""
        self._find()
        return zip(self._found.names, self._found.tensors, strict=True)

    def _find(self) -> None:
        """Find all entries anew, unless nothing has changed since the latest time."""
        tables = [table for _, module in self._modules for table in _tables(module)]
        tables += [optimizer.state for optimizer in self._optimizers]
        if self._found.holds(tables):
            return
        self._found = found = _Found(tables)
        seen = set[int]()
        for kind in (0, 1):
            for prefix, module in self._modules:
                table = _tables(module)[kind]
                plain = table.plain() if isinstance(table, LazyParameters) else table
                for key, value in plain.items():
                    if value is not None and id(value) not in seen:
                        seen.add(id(value))
                        found.add(table, key, f"{prefix}.{key}" if prefix else key, value)
        for number, optimizer in enumerate(self._optimizers):
            parameters = (each for _, group in raw_groups(optimizer) for each in group)
            for at, parameter in enumerate(parameters):
                state = optimizer.state.get(parameter)
                if state is not None:
                    found.watch(optimizer.state, parameter, state)
                    for key in sorted(state):
                        found.add(state, key, f"{number}/{at}/{key}", state[key])


def _tables(module: nn.Module) -> tuple[Any, Any]:
    """Return a module's own tables of parameters and buffers."""
    return module.__dict__["_parameters"], module.__dict__["_buffers"]


def state_hash(module: nn.Module, optimizers: Sequence[Optimizer]) -> str:
    """Return the hash of the parameters, the buffers and the optimizers' states, as 32 hex digits.

    The hash covers names, types, shapes and bytes. It does not depend on the tensors' strides and
    devices, nor on their shards: all ranks make the call if a tensor is sharded over ranks.
    """
    state = HashedState(module, optimizers)
    sharded = (each for _, each in state.named_tensors() if hasattr(each, "full_tensor"))
    state.refresh({id(each): each.full_tensor() for each in sharded})
    return text_of(state.digest(state.pages))


def content(tensor: Tensor) -> Any:
    """Return a tensor's bytes in order, an object with the buffer protocol."""
    total = tensor.numel() * tensor.element_size()
    memory = _memory(tensor, 0, total)
    return _bytes(_Piece(tensor, 0, total, None)) if memory is None else memory


def text_of(words: Words) -> str:
    """Return a hash as 32 hex digits."""
    low, high = words
    return f"{high:016x}{low:016x}"


def _pages(tensors: Sequence[Tensor]) -> Iterator[list[_Piece]]:
    """Divide the bytes of tensors into pages."""
    page, filled = list[_Piece](), 0
    for tensor in tensors:
        total = tensor.numel() * tensor.element_size()
        if page and total > _PAGE:
            yield page
            page, filled = [], 0
        for first in range(0, total, _PAGE):
            end = min(first + _PAGE, total)
            page.append(_Piece(tensor, first, end, _memory(tensor, first, end)))
            filled += end - first
            if filled >= _FULL:
                yield page
                page, filled = [], 0
    if page:
        yield page


def _memory(tensor: Tensor, first: int, end: int) -> Any:
    """Return bytes of a tensor without a copy; None if they are not in order in host memory."""
    plain = tensor.device.type == "cpu" and tensor.is_contiguous()
    if not plain or tensor.is_conj() or tensor.is_neg():
        return None
    return (ctypes.c_char * (end - first)).from_address(tensor.data_ptr() + first)


def _bytes(piece: _Piece) -> bytes:
    """Return a copy of bytes of a tensor."""
    dense = piece.tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
    return ctypes.string_at(dense.data_ptr() + piece.first, piece.end - piece.first)

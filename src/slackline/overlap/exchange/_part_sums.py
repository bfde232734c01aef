"""Gradients of this rank's virtual ranks, added in the order of a fixed tree.

    level 0   part 0 ── + part 1 ────────────────── + level 1 ──▶
    level 1                 part 2 ── + part 3 ────▶               one sum waits for each level
    flat      the last part, to which the sums that are its neighbours are added

A level is a copy of the layout of the exchange's memory. Sums that are no neighbours of the last
part are nodes of their own, which the exchange sends from there.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import add, is_
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["PartGradient", "PartSums", "Whole"]


class PartGradient(Protocol):
    """A gradient, or several that lie together, of one virtual rank after the other."""

    flat: Tensor
    """The gradient's memory of the exchange."""

    def take(self) -> Tensor | None:
        """Return the gradient of the part that has ended, which is then forgotten."""

    def body_in(self, flat: Tensor) -> Tensor:
        """Return the elements of the gradient, in its shape, in memory like `flat`."""

    def tell(self, flat: Tensor, count: int, targets: list[Tensor], sources: list[Tensor]) -> None:
        """Record in memory like `flat` that a sum has `count` parts with a gradient.

        The caller then copies `sources` to `targets`.
        """


class Memory(Protocol):
    """The exchange's memory of gradients, and copies of it for the sums that wait."""

    def node_memory(self, flat: Tensor, number: int) -> Tensor:
        """Return the memory of the sum with a number for a flat tensor of gradients."""

    def span(self, first: Tensor, last: Tensor) -> Tensor:
        """Return one flat tensor over the memory from `first` to the end of `last`."""

    def block_of(self, flat: Tensor) -> int:
        """Return the number of the block in which a flat tensor lies."""


class Whole:
    """A flat tensor that has a value in each part, such as the buffers of a model."""

    def __init__(self, flat: Tensor) -> None:
        self.flat = flat

    def take(self) -> Tensor:
        return self.flat

    def body_in(self, flat: Tensor) -> Tensor:
        return flat

    def tell(self, flat: Tensor, count: int, targets: list[Tensor], sources: list[Tensor]) -> None:
        """Do nothing: nobody asks how many parts had a value."""


class _Level:
    """The memory of one sum that waits."""

    def __init__(
        self, parts: Sequence[PartGradient], flats: Sequence[Tensor], spans: Sequence[Tensor]
    ) -> None:
        self.flats = flats
        """The memory of each gradient."""
        self.spans = spans
        """The same memory as few tensors."""
        self.bodies = [part.body_in(flat) for part, flat in zip(parts, flats, strict=True)]
        self.counts = [0] * len(parts)
        """The number of virtual ranks that have each gradient."""

    def copy(self, values: Sequence[Tensor | None]) -> None:
        """Take the gradients of a virtual rank; None is a missing one."""
        targets, sources = _present(self.bodies, values)
        if sources:
            torch._foreach_copy_(targets, sources)
        if len(sources) < len(values):
            for body, value in zip(self.bodies, values, strict=True):
                if value is None:
                    body.zero_()
        self.counts = _counts(values)

    def add(self, values: Sequence[Tensor | None]) -> None:
        """Add the gradients of a virtual rank; a missing one is 0, which turns -0.0 into 0.0."""
        targets, sources = _present(self.bodies, values)
        if sources:
            torch._foreach_add_(targets, sources)
        if len(sources) < len(values):
            for body, value in zip(self.bodies, values, strict=True):
                if value is None:
                    body.add_(0.0)
        self.counts = list(map(add, self.counts, _counts(values)))

    def add_level(self, other: "_Level") -> None:
        """Add the sum of another level."""
        for mine, theirs in zip(self.spans, other.spans, strict=True):
            mine.add_(theirs)
        self.counts = list(map(add, self.counts, other.counts))


class PartSums:
    """The sums of one step that wait for further virtual ranks of this rank."""

    def __init__(self, folds: Sequence[int], memory: Memory) -> None:
        """Add as `folds` says: the number of additions after each of this rank's virtual ranks."""
        self._folds = folds
        self._memory = memory
        self._parts: list[PartGradient] = []
        self._flats: list[Tensor] = []
        self._levels: list[_Level] = []
        self.waiting = 0
        """The number of sums that wait: the first levels."""
        self.folded = 0
        """The number of virtual ranks whose gradients are in sums that wait."""

    @property
    def nodes(self) -> int:
        """The number of sums that the last virtual rank leaves as nodes of their own."""
        return len(self._folds) - 1 - sum(self._folds)

    def begin(self) -> None:
        """Begin a step: no virtual rank has gradients yet."""
        self.waiting = self.folded = 0

    def fold(self, parts: Sequence[PartGradient]) -> None:
        """Take the gradients of a virtual rank, which is not the last one, as a node."""
        self._follow(parts)
        values = [part.take() for part in self._parts]
        sums = self._folds[self.folded]
        with torch.no_grad():
            if sums:
                top = self.waiting - 1
                self._levels[top].add(values)
                for level in range(top, top - sums + 1, -1):
                    self._levels[level - 1].add_level(self._levels[level])
            else:
                self._level(self.waiting).copy(values)
        self.waiting += 1 - sums
        self.folded += 1

    def place(self) -> None:
        """Complete the sums that wait, before the reductions of the last virtual rank."""
        targets, sources = list[Tensor](), list[Tensor]()
        for level in self._levels[: self.waiting]:
            for part, flat, count in zip(self._parts, level.flats, level.counts, strict=True):
                part.tell(flat, count, targets, sources)
        if targets:
            with torch.no_grad():
                torch._foreach_copy_(targets, sources)

    def add_to(self, flat: Tensor) -> None:
        """Add the sums that wait to the last virtual rank's gradients that lie in `flat`."""
        with torch.no_grad():
            for number in reversed(range(self.nodes, self.waiting)):
                flat.add_(self._memory.node_memory(flat, number))

    def _follow(self, parts: Sequence[PartGradient]) -> None:
        """Begin anew if the gradients or their places in memory are others than before."""
        flats = [part.flat for part in parts]
        if len(flats) != len(self._flats) or not all(map(is_, flats, self._flats)):
            self._parts, self._flats = list(parts), flats
            self._levels.clear()

    def _level(self, number: int) -> _Level:
        """Return the memory of the sum that is the next one to wait."""
        if number == len(self._levels):
            flats = [self._memory.node_memory(flat, number) for flat in self._flats]
            self._levels.append(_Level(self._parts, flats, self._spans(number)))
        return self._levels[number]

    def _spans(self, number: int) -> list[Tensor]:
        """Return few tensors over the memory of a level, by block and type."""
        ordered = sorted(self._flats, key=Tensor.data_ptr)
        runs = groupby(ordered, key=lambda flat: (self._memory.block_of(flat), flat.dtype))
        spans = list[Tensor]()
        for _, run in runs:
            first, *more = run
            span = self._memory.span(first, more[-1] if more else first)
            spans.append(self._memory.node_memory(span, number))
        return spans


def _present(
    bodies: list[Tensor], values: Sequence[Tensor | None]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the gradients that are there, and before them their memory."""
    sources = [value for value in values if value is not None]
    if len(sources) == len(values):
        return bodies, sources
    pairs = zip(bodies, values, strict=True)
    return [body for body, value in pairs if value is not None], sources


def _counts(values: Sequence[Tensor | None]) -> list[int]:
    return [int(value is not None) for value in values]

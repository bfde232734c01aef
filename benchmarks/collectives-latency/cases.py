"""The cells of the table: operations, sizes, numbers of ranks and rails; and the targets."""

from __future__ import annotations

from dataclasses import dataclass

from operations import OPERATIONS

ITEM_BYTES = 4
"""The size of an element: float32."""

CONTESTANTS = ("slackline", "gloo", "openmpi")
EMPTY = "empty"
"""Calls through `torch.distributed` to torch's backend "fake", which moves no data: the time that
any backend of torch needs. They are measured where no time depends on the size."""
EMPTY_BYTES = 64
"""The size at which empty calls are measured; a barrier has no size."""

SIZES = {
    64: "64 B",
    4096: "4 KiB",
    64 << 10: "64 KiB",
    1 << 20: "1 MiB",
    16 << 20: "16 MiB",
    100_000_000: "100 MB",
}
"""The bytes of the whole tensor at one rank, with their names."""

QUICK_SIZES = (64, 64 << 10, 1 << 20)
CROWDED_SIZES = (64, 4096)
"""The sizes of all_reduce, the only operation of parts with many more ranks than cores."""

CALLS = {64: 100, 4096: 100, 64 << 10: 30, 1 << 20: 10, 16 << 20: 2, 100_000_000: 1}
"""The calls of a timed turn, by size."""

GLOO_OVER_OURS = 1.0
"""The smallest allowed ratio of gloo's time to slackline's, in every cell."""
AHEAD_OF_OPENMPI = 0.9
"""The smallest allowed share of the cells in which slackline is ahead of OpenMPI."""
OURS_OVER_OPENMPI = 1.2
"""The largest allowed ratio of slackline's time to OpenMPI's, in every cell."""
CROWDED_OPENMPI_OVER_OURS = 1.0
"""The smallest allowed ratio of OpenMPI's time to slackline's at 4 KiB with 32 ranks over TCP."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A number of ranks of one machine, and the rails between them."""

    rails: str
    """The kind of rails, and OpenMPI's transport: "shm" or "tcp"."""
    ranks: int

    @property
    def name(self) -> str:
        return f"{self.rails}-{self.ranks}"


CROWDED = Part(rails="tcp", ranks=32)
"""A part with many more ranks than cores."""
PARTS = (
    *(Part(rails=rails, ranks=ranks) for rails in ("shm", "tcp") for ranks in (2, 4, 8)),
    CROWDED,
)
QUICK_PARTS = tuple(part for part in PARTS if part.ranks == 2)


@dataclass(frozen=True, kw_only=True)
class Case:
    """An operation at one size. A barrier has no size."""

    operation: str
    nbytes: int

    @property
    def name(self) -> str:
        return f"{self.operation}, {SIZES[self.nbytes]}" if self.nbytes else self.operation

    @property
    def count(self) -> int:
        """The number of elements of the whole tensor at one rank."""
        return self.nbytes // ITEM_BYTES

    @property
    def calls(self) -> int:
        """The number of calls in a timed turn."""
        return CALLS.get(self.nbytes, 100)

    @property
    def has_empty_calls(self) -> bool:
        """Whether empty calls are measured in this case."""
        return self.nbytes in (0, EMPTY_BYTES)

    @property
    def warm_up(self) -> int:
        """The number of calls before the timed ones."""
        return min(4, self.calls)


def cases(part: Part, *, quick: bool) -> tuple[Case, ...]:
    """Return the cases of a part: each operation at each size, or a few of a crowded part."""
    if part == CROWDED:
        return tuple(Case(operation="all_reduce", nbytes=nbytes) for nbytes in CROWDED_SIZES)
    sizes = QUICK_SIZES if quick else tuple(SIZES)
    return tuple(
        Case(operation=operation, nbytes=nbytes)
        for operation in OPERATIONS
        for nbytes in ((0,) if operation == "barrier" else sizes)
    )

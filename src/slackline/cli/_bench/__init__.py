"""The measurement of `slackline bench`.

__init__.py  what is measured, as data
rank.py      one rank of the measurement, which needs torch
"""

import json
from dataclasses import asdict, dataclass
from typing import Self

__all__ = ["COLLECTIVES", "Asked"]

COLLECTIVES = {
    "all-reduce": 2.0,
    "all-gather": 1.0,
    "reduce-scatter": 1.0,
    "all-to-all": 1.0,
    "broadcast": 0.0,
}
"""The collectives, each with the number of times that (n - 1) / n of the buffer leaves a rank; 0
stands for the whole buffer, whatever the number n of ranks (nccl-tests, doc/PERFORMANCE.md)."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The measurement that a command asks for."""

    collective: str
    backend: str
    least_bytes: int
    """The size of the smallest buffer: the one that holds the data of all ranks."""
    most_bytes: int
    factor: int
    dtype: str
    """The name of torch's element type."""
    seconds: float
    """The time for which each size is measured."""
    as_json: bool

    def as_word(self) -> str:
        """Return the measurement as one word of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def of_word(cls, word: str) -> Self:
        """Return the measurement that `as_word` has written."""
        return cls(**json.loads(word))

    @property
    def sizes(self) -> list[int]:
        """The sizes in bytes, the smallest first."""
        found = [self.least_bytes]
        while found[-1] * self.factor <= self.most_bytes:
            found.append(found[-1] * self.factor)
        return found

    def bus_share(self, ranks: int) -> float:
        """Return the part of the buffer that each rank must send at least."""
        times = COLLECTIVES[self.collective]
        return times * (ranks - 1) / ranks if times else 1.0

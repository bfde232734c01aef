"""The times of allreduces before, during and after the cut of a NIC, and the throughput over time.

No function here has side effects.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

from _harness.report import Row, Scalar

STEP = 4
"""The number of allreduces over which the drawn throughput is averaged."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Allreduces of one size in the order of their calls, during which a NIC is cut and comes back.

    All times are of rank 0, in ms from the call of the first allreduce.
    """

    system: str
    """The library that reduces: "slackline tcp" or "gloo"."""
    nbytes: int
    """The bytes of each allreduce."""
    down_ms: float
    """The time at which the NIC is cut."""
    up_ms: float
    """The time at which the NIC comes back."""
    began_ms: Sequence[float]
    ended_ms: Sequence[float]

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """Return the series of a row of the benchmark's JSON object."""
        return cls(
            system=row["system"],
            nbytes=row["bytes"],
            **{name: row[name] for name in ("down_ms", "up_ms", "began_ms", "ended_ms")},
        )

    def row(self, labels: Mapping[str, Scalar]) -> Row:
        """Return the series as a row with these labels, and with system and bytes as labels too."""
        return Row(
            labels={**labels, "system": self.system, "bytes": self.nbytes},
            values={"down_ms": self.down_ms, "up_ms": self.up_ms},
            series={"began_ms": self.began_ms, "ended_ms": self.ended_ms},
        )

    @property
    def before(self) -> float:
        """The throughput until the cut, in 10**6 bytes a second."""
        return self._throughput(0, self.down_ms)

    @property
    def while_down(self) -> float:
        """The throughput from the cut until the NIC's return, in 10**6 bytes a second."""
        return self._throughput(self.down_ms, self.up_ms)

    @property
    def after(self) -> float:
        """The throughput from the NIC's return to the end, in 10**6 bytes a second."""
        return self._throughput(self.up_ms, max(self.ended_ms))

    @property
    def longest_pause_ms(self) -> float:
        """The longest time from the end of an allreduce to the end of the next one."""
        return max(after - before for before, after in pairwise(sorted(self.ended_ms)))

    def steps(self) -> tuple[list[float], list[float]]:
        """Return edges in s and, between each two edges, the throughput in 10**6 bytes a second.

        An edge is the end of an allreduce. STEP or more allreduces end between two edges. The last
        allreduce before the cut and the last one before the NIC's return have an edge each, so that
        no step averages over a change.
        """
        edges_ms, rates = [0.0], []
        for part_ms in self._parts():
            while part_ms:
                # A short rest belongs to the step before it: few allreduces may end together.
                count = STEP if len(part_ms) >= 2 * STEP else len(part_ms)
                edge_ms, part_ms = part_ms[count - 1], part_ms[count:]
                rates.append(count * self.nbytes / 1e3 / (edge_ms - edges_ms[-1]))
                edges_ms.append(edge_ms)
        return [round(edge / 1e3, 4) for edge in edges_ms], [round(rate, 2) for rate in rates]

    def _parts(self) -> Iterator[list[float]]:
        """Yield the ends before the cut, until the NIC's return and after it, each sorted."""
        for since_ms, until_ms in pairwise((-math.inf, self.down_ms, self.up_ms, math.inf)):
            yield sorted(end for end in self.ended_ms if since_ms < end <= until_ms)

    def _throughput(self, since_ms: float, until_ms: float) -> float:
        ended = sum(since_ms < end <= until_ms for end in self.ended_ms)
        return round(ended * self.nbytes / 1e3 / (until_ms - since_ms), 2)

"""The evidence that a verdict needs, learned from the runs of late readings that are normal.

A reading is late when it exceeds its baseline clearly. A sender that fills its wire delays its own
probes for as long as a transfer lasts, so a run of late readings of that length is normal. A run
that lasts twice as long as the longest normal run is worth a verdict. When a verdict ends before
twice its evidence has passed, the verdict was a false alarm, and its run counts as normal
afterwards.
"""

__all__ = ["Runs"]

_FACTOR = 2
_FORGET = 0.9995
"""The decay of the longest run of late readings, per reading: half in a minute or two."""


class Runs:
    """The longest normal run of late readings in one direction of a rail."""

    def __init__(self, least: float, *, sure: int, most: float) -> None:
        """Create an empty record of runs; `least` and `most` bound the evidence for a verdict.

        After `sure` readings, twice the longest normal run is enough evidence. Before, the factor
        is larger, because few readings have not shown the longest normal run yet.
        """
        self._least = least
        self._sure = sure
        self._most = most
        self._longest = 0.0
        self._run = 0
        self._seen = 0

    @property
    def evidence(self) -> float:
        """The number of consecutive clear readings that make a verdict."""
        factor = _FACTOR * max(1.0, self._sure / max(self._seen, 1))
        return min(max(self._least, factor * self._longest + 1), self._most)

    def take(self, *, late: bool, told: bool) -> None:
        """Record whether the next reading is `late`; `told` says whether a verdict is in force."""
        self._longest *= _FORGET
        self._seen += 1
        if late:
            self._run += 1
        elif self._run:
            if not told or self._run <= _FACTOR * self.evidence:
                self._longest = max(self._longest, float(self._run))
            self._run = 0

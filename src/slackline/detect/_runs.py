"""The number of late readings that a verdict (report of a problem) needs, learned from normal runs.

A reading is late if it clearly exceeds its baseline; a run is a series of consecutive late
readings. A sender that fills its network link delays its own probes for as long as a transfer
lasts, so a run of that length is normal. A run that lasts twice as long as the longest normal run
is worth a verdict. If a verdict ends before twice as many readings have passed as the verdict
needed, the verdict was a false alarm, and its run counts as normal from then on.
"""

__all__ = ["Runs"]

_FACTOR = 2
_FORGET = 0.9995
"""The decay of the longest run of late readings, per reading: half in a minute or two."""


class Runs:
    """The longest normal run (series of readings above the baseline) in a rail's direction."""

    def __init__(self, least: float, *, sure: int, most: float) -> None:
        """Create an empty record; `least` and `most` bound the length of a run for a verdict.

        After `sure` readings, a verdict (report of a problem) needs a run of late readings
        (readings clearly above the baseline) that is twice as long as the longest normal run.
        Earlier the factor is larger than two, because the longest normal run may not have occurred
        yet.
        """
        self._least = least
        self._sure = sure
        self._most = most
        self._longest = 0.0
        self._run = 0
        self._seen = 0

    @property
    def evidence(self) -> float:
        """The number of late readings (above the baseline) in a row that make a verdict."""
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

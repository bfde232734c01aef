"""A change detector for a series of readings: a cumulative sum (CUSUM) with hysteresis.

Each reading scores between -1 and 1: below the threshold the score is negative, above it positive,
and from `clear` times the threshold on it is 1. The sum of scores never falls below zero. A change
is found when the sum reaches `evidence`, and the change began when the sum last left zero. From
then on the sum collects evidence for the recovery: readings below half of the found change score
positive.
"""

from dataclasses import dataclass

__all__ = ["Cusum"]


@dataclass(slots=True)
class Cusum:
    """A CUSUM change detector.

    The object is small, so the caller can copy it before a reading, to undo the reading later.
    """

    evidence: float
    recovery_evidence: float
    clear: float = 2.0
    active: bool = False
    """Whether a change was found and still lasts."""
    since_ns: int = 0
    """The estimated time at which the present state began."""
    threshold: float = 0.0
    """The size of the found change; readings below half of this size are evidence of its end."""
    score: float = 0.0
    _turned_ns: int = 0

    @property
    def calm(self) -> bool:
        """Whether no change is active and no evidence for a change has been collected."""
        return not self.active and not self.score

    def take(self, reading: float, threshold: float, began_ns: int) -> bool:
        """Add a reading and return whether `active` changed with it.

        `reading` is the excess over the baseline, `threshold` the least excess that counts as a
        change, and `began_ns` the start of the interval that the reading describes.
        """
        above = reading / (self.threshold if self.active else threshold)
        weight = 1 - 2 * above if self.active else _evidence(above, self.clear)
        weight = min(1.0, max(-1.0, weight))
        if not self.score:
            self._turned_ns = began_ns
        self.score = max(0.0, self.score + weight)
        if self.score < (self.recovery_evidence if self.active else self.evidence):
            return False
        self.active = not self.active
        self.since_ns = self._turned_ns
        # The recovery is measured against the change that was found, not against the threshold.
        self.threshold = max(threshold, reading) if self.active else threshold
        self.score = 0.0
        return True


def _evidence(above: float, clear: float) -> float:
    """Return a reading's score: -1 at 0, 0 at the threshold, 1 at `clear` thresholds."""
    return above - 1 if above < 1 else (above - 1) / (clear - 1)

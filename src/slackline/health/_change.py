"""Finds the moment at which readings changed: a cumulative sum with hysteresis.

Each reading scores between -1 and 1: it speaks for a change when it is above what counts as one,
fully so from `clear` times that on, and against it below. The sum never falls below zero; a change
is found when it reaches `evidence`, and it began where the sum last left zero. Once found, a sum is
kept for the way back, for which readings speak below half of what was found.
"""

from dataclasses import dataclass

__all__ = ["Change"]


@dataclass(slots=True)
class Change:
    """The state of one detector. Small enough to be copied, which is how a reading is undone."""

    evidence: float
    recovery_evidence: float
    clear: float = 2.0
    active: bool = False
    """A change was found and has not gone."""
    since_ns: int = 0
    """When the present state began, as far as the readings tell."""
    threshold: float = 0.0
    """The size of the change that was found; below half of it, it is over."""
    score: float = 0.0
    _turned_ns: int = 0

    @property
    def calm(self) -> bool:
        """Nothing speaks for a change, in either direction."""
        return not self.active and not self.score

    def take(self, reading: float, threshold: float, began_ns: int) -> bool:
        """Takes how far a reading lies above the usual; True when the state changed with it.

        `began_ns`: when what the reading tells about began.
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
        # What is to be over is what was found, not what would have sufficed.
        self.threshold = max(threshold, reading) if self.active else threshold
        self.score = 0.0
        return True


def _evidence(above: float, clear: float) -> float:
    return above - 1 if above < 1 else (above - 1) / (clear - 1)

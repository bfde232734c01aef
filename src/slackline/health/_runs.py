"""How many late readings in a row are usual, and so how many it takes to say more than that.

A sender that fills its wire delays its own probes for as long as a transfer lasts; that is as usual
as the transfer. What has lasted twice as long as it ever does is news. A verdict that does not
outlast twice its evidence was none, and counts as usual from then on.
"""

__all__ = ["Runs"]

_FACTOR = 2
_FORGET = 0.9995
"""Of the longest run, for each reading: half of it is forgotten in a minute or two."""


class Runs:
    """The late readings in a row of one direction."""

    def __init__(self, least: float, *, sure: int, most: float) -> None:
        """`sure`: after so many readings twice is enough; before, little has been seen.

        `most`: so many are evidence whatever was usual.
        """
        self._least = least
        self._sure = sure
        self._most = most
        self._longest = 0.0
        self._run = 0
        self._seen = 0

    @property
    def evidence(self) -> float:
        """How many clear readings in a row make a verdict."""
        factor = _FACTOR * max(1.0, self._sure / max(self._seen, 1))
        return min(max(self._least, factor * self._longest + 1), self._most)

    def take(self, *, late: bool, told: bool) -> None:
        """The next reading; `told`: while a verdict holds."""
        self._longest *= _FORGET
        self._seen += 1
        if late:
            self._run += 1
        elif self._run:
            if not told or self._run <= _FACTOR * self.evidence:
                self._longest = max(self._longest, float(self._run))
            self._run = 0

"""The hashes of a training's state, added up from the parts that the ranks have hashed."""

from dataclasses import dataclass, field

from slackline.records import StateHash

__all__ = ["StateHashes"]

_WORD = 1 << 64


@dataclass
class _Parts:
    """The parts of the hash of one step, as the ranks of one group have hashed them."""

    words: dict[int, str] = field(default_factory=dict)
    exact: bool = True


class StateHashes:
    """The sums of parts of hashes. Those of the latest steps alone are kept while incomplete."""

    def __init__(self, most: int = 1000) -> None:
        """Keep the parts of at most `most` steps whose other parts are missing."""
        self._most = most
        self._open: dict[tuple[int, int], _Parts] = {}

    def take(self, record: StateHash) -> tuple[str, bool] | None:
        """Add a part; return the hash of the step and whether it is exact, once all are there."""
        place = record.step, record.parts
        found = self._open.setdefault(place, _Parts())
        found.words[record.part] = record.hash
        found.exact &= record.exact
        if len(found.words) < record.parts:
            while len(self._open) > self._most:
                self._open.pop(next(iter(self._open)))
            return None
        del self._open[place]
        low = sum(int(text[16:], 16) for text in found.words.values()) % _WORD
        high = sum(int(text[:16], 16) for text in found.words.values()) % _WORD
        return f"{high:016x}{low:016x}", found.exact

    @property
    def incomplete(self) -> list[int]:
        """The steps some of whose parts are missing."""
        return sorted({step for step, _ in self._open})

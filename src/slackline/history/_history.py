"""The step times of a whole run, in bounded memory."""

from array import array
from dataclasses import dataclass, field

__all__ = ["StepHistory", "Steps"]

_MOST_ENTRIES = 512
"""The largest number of entries of a history, a power of two."""

_MOST_SAMPLES = 16
"""The largest number of steps of an entry whose durations are kept, a power of two."""


@dataclass(slots=True)
class Steps:
    """Sums over consecutive steps of one rank."""

    count: int = 0
    """The number of steps."""
    wall_ns: int = 0
    """The sum of the steps' durations."""
    longest_ns: int = 0
    """The duration of the longest step."""
    exposed_ns: int = 0
    """The sum of the times for which the training thread waited for communication."""
    ended_ns: int = 0
    """The Unix time at which the last of the steps ended."""
    sample_ns: "array[int]" = field(default_factory=lambda: array("q"))
    """The durations of some of the steps, evenly chosen: of all steps of an entry of at most 16."""

    def add(self, other: "Steps") -> None:
        """Add the sums and the kept durations of later steps."""
        self.count += other.count
        self.wall_ns += other.wall_ns
        self.longest_ns = max(self.longest_ns, other.longest_ns)
        self.exposed_ns += other.exposed_ns
        self.ended_ns = max(self.ended_ns, other.ended_ns)
        self.sample_ns.extend(other.sample_ns)


class StepHistory:
    """All steps of a rank, as at most 512 entries that sum up equally many steps each.

    When all entries are used, each two neighbours are merged: the resolution of a run of any length
    is at least a 512th of the run. Only the last entry may have fewer steps than the others.
    """

    def __init__(self, most: int = _MOST_ENTRIES) -> None:
        """Create an empty history of at most `most` entries, an even number."""
        self.entries: list[Steps] = []
        """The sums, the earliest steps first."""
        self.width = 1
        """The number of steps in each entry but the last."""
        self._most = most

    def add(self, steps: Steps) -> None:
        """Add a step, or the times of a step that is counted already (with a count of 0)."""
        if not self.entries or (steps.count and self.entries[-1].count == self.width):
            if len(self.entries) == self._most:
                self._double()
            self.entries.append(Steps())
        entry = self.entries[-1]
        if steps.count and entry.count % self._every(self.width) == 0:
            entry.sample_ns.append(steps.wall_ns)
        entry.add(steps)

    def by(self, width: int, first: int = 0) -> list[Steps]:
        """Return the sums over `width` steps each, without the `first` ones.

        `width` is a multiple of the history's width.
        """
        merged: list[Steps] = []
        for number, entry in enumerate(self.entries[first * width // self.width :]):
            if number * self.width % width == 0:
                merged.append(Steps())
            merged[-1].add(entry)
        fewer = self._every(width) // self._every(self.width)
        for entry in merged if fewer > 1 else ():
            entry.sample_ns = entry.sample_ns[::fewer]
        return merged

    @staticmethod
    def _every(width: int) -> int:
        """Return the number of steps of which one duration is kept, in entries of `width` steps."""
        return max(width // _MOST_SAMPLES, 1)

    def _double(self) -> None:
        self.entries = self.by(2 * self.width)
        self.width *= 2

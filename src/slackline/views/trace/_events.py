"""The parts of a trace, whatever its format: processes, tracks, and the events on them.

All times are Unix time in nanoseconds, by the clock of the lowest rank's host.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Event", "Instant", "Lanes", "Process", "Sample", "Slice", "Track", "Value"]

Value = int | float | str
"""The value of an argument of an event."""


@dataclass(frozen=True, slots=True)
class Process:
    """A rank, which a viewer shows as a process; precedes all events of the rank."""

    rank: int
    """The rank in the job."""
    host: str
    """The name of the rank's host."""
    pid: int
    """The number of the rank's first process on its host."""


@dataclass(frozen=True, slots=True)
class Track:
    """A row of events of one rank. Slices of one track either nest or do not overlap."""

    rank: int
    """The rank in the job."""
    name: str
    """The name, the same for all lanes of a track."""
    lane: int = 0
    """The number of the track among those of this name, for slices that overlap."""
    unit: str = ""
    """The unit of the samples; empty for a track of slices and instants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """An event that lasts. A slice comes before the slices that are nested in it."""

    track: Track
    name: str
    category: str
    """The kind of the event: "operation", "wait", "training", "gradients", "pipeline" or
    "cause"."""
    begin_ns: int
    end_ns: int
    arguments: Mapping[str, Value] = field(default_factory=dict)
    """Further facts, which a viewer shows with the event."""
    flows_out: tuple[int, ...] = ()
    """The numbers of the arrows that begin at this slice, each of which ends at one other slice."""
    flows_in: tuple[int, ...] = ()
    """The numbers of the arrows that end at this slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """An event without duration."""

    track: Track
    name: str
    category: str
    """The kind of the event: "verdict", "decision", "message" or "gap"."""
    time_ns: int
    arguments: Mapping[str, Value] = field(default_factory=dict)
    """Further facts, which a viewer shows with the event."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A value that holds from its time to the next sample of the track."""

    track: Track
    time_ns: int
    value: int


Event = Process | Slice | Instant | Sample


class Lanes:
    """A choice of lanes for slices of one name that may overlap."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, str], list[int]] = {}

    def track(self, rank: int, name: str, begin_ns: int, end_ns: int) -> Track:
        """Return the track of the slice: the lane that was idle for the shortest time before.

        A slice never overlaps one that was given the same lane earlier, in whatever order slices
        come. If they come in the order of their ends, few lanes are needed.
        """
        ends = self._ends.setdefault((rank, name), [])
        free = [lane for lane, end in enumerate(ends) if end <= begin_ns]
        lane = max(free, key=ends.__getitem__, default=len(ends))
        if lane == len(ends):
            ends.append(end_ns)
        else:
            ends[lane] = end_ns
        return Track(rank, name, lane)

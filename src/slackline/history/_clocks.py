"""The clocks of a job's hosts, compared with each other while the ranks write."""

from collections import deque
from dataclasses import replace
from typing import Any, TypeVar, cast

from slackline.history._align import align
from slackline.records import ClockOffset, FileHeader, Record

__all__ = ["Clocks", "shifted"]

_KEPT = 60
"""The number of estimates of each pair of clocks that are kept: a minute of a link in use."""

_LATEST = 10
"""The number of latest estimates of a pair of which the one with the least error counts."""

_AGAIN_NS = 10_000_000_000
"""The time after which clocks that are known are compared anew: crystals drift by 100 ppm."""

_Record = TypeVar("_Record", bound=Record)


class Clocks:
    """The differences of the hosts' Unix times from that of the lowest rank's host."""

    def __init__(self) -> None:
        self._headers: dict[int, FileHeader] = {}
        self._offsets: dict[tuple[int, int], deque[ClockOffset]] = {}
        self._shifts: dict[int, int] = {}
        self._compared_ns = 0
        self._changed = False

    @property
    def apart(self) -> list[int]:
        """The ranks whose clocks cannot be compared: their times stay those of their own hosts."""
        self._compare()
        return sorted(self._headers.keys() - self._shifts.keys())

    def knows(self, rank: int, peer: int) -> bool:
        """Return whether there is an estimate by probes from one rank to another."""
        return (rank, peer) in self._offsets

    def begin(self, header: FileHeader) -> None:
        """Add the beginning of a process."""
        if self._headers.get(header.rank) != header:
            self._headers[header.rank] = header
            self._changed = True

    def take(self, offset: ClockOffset, time_ns: int = 0) -> None:
        """Add an estimate, which was made at the job's Unix time `time_ns`; 0 if not known yet.

        The clocks are compared anew at the first estimate of a pair, and once in ten seconds.
        """
        kept = self._offsets.setdefault((offset.rank, offset.peer), deque(maxlen=_KEPT))
        if not kept or offset != kept[-1]:
            self._changed |= not kept
            kept.append(offset)
        if offset.rank in self._shifts and time_ns - self._compared_ns >= _AGAIN_NS:
            self._compared_ns, self._changed = time_ns, True

    def shift_ns(self, rank: int) -> int:
        """Return what to add to Unix times of a rank's host for those of the lowest rank's host.

        The result is 0 while the clocks cannot be compared.
        """
        if self._changed:
            self._compare()
        return self._shifts.get(rank, 0)

    def one_way_ns(self, source: int, target: int) -> tuple[list[int], list[int]]:
        """Return the times on the way from one rank to another, of both ranks' probes.

        The times of each list contain the difference of the two hosts' clocks.
        """
        there = self._offsets.get((source, target), ())
        back = self._offsets.get((target, source), ())
        return (
            [each.offset_ns + each.error_ns for each in there],
            [each.error_ns - each.offset_ns for each in back],
        )

    def _compare(self) -> None:
        if not self._changed or not self._headers:
            return
        self._changed = False
        latest = [
            min(list(kept)[-_LATEST:], key=lambda each: each.error_ns)
            for kept in self._offsets.values()
        ]
        alignment = align([*self._headers.values(), *latest])
        # Ranks of one host read its two clocks one after the other, some microseconds apart.
        of_clock = {self._headers[min(self._headers)].clock: 0}
        self._shifts = {}
        for rank, header in self._headers.items():
            if rank in alignment:
                shift_ns = alignment.unix_ns(rank, header.monotonic_ns) - header.time_ns
                known_ns = of_clock.setdefault(header.clock, shift_ns) if header.clock else shift_ns
                self._shifts[rank] = known_ns


def shifted(record: _Record, shift_ns: int) -> _Record:
    """Return a record whose Unix time, if it has one, is later by `shift_ns`.

    The beginning of a process stays as it is: it says what two clocks of one host show.
    """
    if not shift_ns or isinstance(record, FileHeader) or not hasattr(record, "time_ns"):
        return record
    timed: Any = record
    return cast(_Record, replace(timed, time_ns=timed.time_ns + shift_ns))

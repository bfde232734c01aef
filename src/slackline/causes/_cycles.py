"""Steps of ranks without records of steps, found in their collectives.

DistributedDataParallel and a script's own loops post the same collectives in each step. The own
time of a step is the time in which the rank has posted no collective and waits for none:

    | own time  | post  | own | post  | own time  | post
                [collective]            (the rank is late here: others wait in their collectives)
                           [collective]

A collective that is in flight while the rank computes takes nothing from the own time.
"""

from collections import deque
from collections.abc import Iterable
from heapq import nlargest
from itertools import islice

from slackline.history import Call

__all__ = ["Cycles"]

_LONGEST = 256
"""The largest number of collectives in a step that are recognised by their sizes."""

_LEAST = 12
"""The number of collectives over which sizes must repeat."""

_GAP = 0.4
"""The part of the long recent own times from which on a collective of equal ones begins a step."""

_RECENT, _LEARN, _EVERY, _STALLS = 128, 12, 8, 3
"""The long own time is the third longest of 128 collectives, since one or two may be stalls. The
time is known from 12 collectives on, and found anew after 8."""

_LATEST = 12
"""The number of collectives before which own times are added up."""


class Cycles:
    """The steps of one rank; a step begins with a collective that repeats."""

    def __init__(self) -> None:
        self._sizes: deque[tuple[int, int, int]] = deque(maxlen=3 * _LONGEST)
        self._period = 0
        self._aligned = False
        """Whether the latest steps begin with the collective after the longest own time."""
        self._posted_ns = 0
        self._ends: list[int] = []
        """The ends of the collectives that were in flight at the latest post."""
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._latest: deque[int] = deque(maxlen=_LATEST)
        self._taken = 0
        self._long_ns = 0
        self._began_ns = self._own_ns = self._count = 0

    @property
    def latest_ns(self) -> int | None:
        """The own time before the latest collectives, added up; None before there are enough.

        Of ranks that post the same collectives these sums can be compared, before the collectives
        have repeated for a while.
        """
        return sum(self._latest) if len(self._latest) == _LATEST else None

    def take(self, calls: Iterable[Call]) -> list[tuple[int, int]]:
        """Add collectives in the order of their posts.

        Returns the start of each step that they complete, as Unix time, and the step's own time, in
        nanoseconds.
        """
        found = []
        for call in calls:
            before = [ended_ns for ended_ns in self._ends if ended_ns <= call.posted_ns]
            from_ns = max([self._posted_ns, *before])
            own_ns = call.posted_ns - from_ns if self._posted_ns else 0
            self._recent.append(own_ns)
            self._latest.append(own_ns)
            self._taken += 1
            if self._taken >= _LEARN and (self._taken - _LEARN) % _EVERY == 0:
                self._long_ns = nlargest(_STALLS, self._recent)[-1]
            repeats = self._repeats(call)
            if repeats and self._period > 1 and self._aligned:
                begins = self._count >= self._period
            else:
                begins = 0 < _GAP * self._long_ns <= own_ns
                self._aligned = repeats and begins
            if begins:
                if self._began_ns and repeats:
                    found.append((self._began_ns, self._own_ns))
                self._began_ns, self._own_ns, self._count = from_ns, 0, 0
            self._own_ns += own_ns
            self._count += 1
            self._posted_ns = call.posted_ns
            self._ends = [each for each in self._ends if each > call.posted_ns] + [call.ended_ns]
        return found

    def _repeats(self, call: Call) -> bool:
        """Add the size of a collective; return whether sizes have repeated for a while."""
        self._sizes.append(call.size)
        sizes = self._sizes
        if self._period and sizes[-1] == sizes[-1 - self._period]:
            return True
        backwards = list(reversed(sizes))
        for period in range(1, _LONGEST + 1):
            span = max(2 * period, _LEAST)
            if len(sizes) < span + period:
                break
            later = islice(backwards, period, period + span)
            if all(one == other for one, other in zip(backwards, later, strict=False)):
                self._period, self._aligned = period, False
                return True
        self._period = 0
        return False

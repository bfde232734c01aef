"""The alignment of all hosts' clocks.

Each host has a monotonic clock. A `ClockOffset` states the difference between two monotonic clocks
with a bound of the error, half of a probe's round trip (Cristian, "Probabilistic clock
synchronization", 1989). Offsets add up along paths of links, and so do their errors: each host's
clock is compared with the reference by the path with the smallest error. Between two estimates of
one pair the offset is interpolated, since clocks drift.
"""

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import count

from slackline.errors import UsageError
from slackline.records import ClockOffset, FileHeader, Record

__all__ = ["Alignment", "align"]


_MOST_DRIFT = 200e-6
"""The relative rate by which two hosts' clocks may drift apart: 100 ppm for each crystal."""


class Alignment:
    """The clocks of a job's hosts, compared with the clock of the reference rank's host."""

    def __init__(
        self,
        headers: Mapping[int, FileHeader],
        paths: Mapping[str, tuple["_Offsets", ...]],
        reference: int,
    ) -> None:
        """Create an alignment; programs call `align` instead.

        `paths[clock]` leads from that clock to the clock of the reference rank's host.
        """
        self._headers = headers
        self._paths = paths
        self._reference = headers[reference]
        self.reference = reference
        """The rank whose host has the reference clock."""

    def __contains__(self, rank: int) -> bool:
        """Return whether the rank's clock can be compared with the reference clock."""
        return rank in self._headers and _clock(self._headers[rank]) in self._paths

    def error_ns(self, rank: int, monotonic_ns: int) -> int:
        """Return the largest error of `unix_ns` that the comparison of clocks causes."""
        return self._place(rank, monotonic_ns)[1]

    def unix_ns(self, rank: int, monotonic_ns: int) -> int:
        """Return the Unix time of the reference rank's host at a monotonic time of the rank's host.

        Raises UsageError for a rank whose clock cannot be compared with the reference clock.
        """
        return self._place(rank, monotonic_ns)[0]

    def from_unix(self, rank: int, time_ns: int) -> int:
        """Return the monotonic time of the rank's host at a Unix time of the same host.

        The conversion uses the two clocks as read together when the rank began to write. If the
        host's Unix time was set later, the result does not follow the change.
        """
        header = self._headers[rank]
        return time_ns - header.time_ns + header.monotonic_ns

    def _place(self, rank: int, monotonic_ns: int) -> tuple[int, int]:
        if rank not in self:
            raise UsageError(
                f"the clock of rank {rank} cannot be compared with that of rank {self.reference}: "
                f"no probe of a link joins their hosts"
            )
        error_ns = 0
        for offsets in self._paths[_clock(self._headers[rank])]:
            offset_ns, error = offsets.at(monotonic_ns)
            monotonic_ns += offset_ns
            error_ns += error
        base = self._reference
        return monotonic_ns - base.monotonic_ns + base.time_ns, error_ns


class _Offsets:
    """The estimated differences between one clock and another over time."""

    def __init__(self, points: Iterable[tuple[int, int, int]]) -> None:
        """Take one or more points (time by the first clock, second minus first clock, error)."""
        self._points = sorted(points)
        self._times = [point[0] for point in self._points]
        self.error_ns = min(point[2] for point in self._points)

    def at(self, time_ns: int) -> tuple[int, int]:
        """Return (offset, error) at a time of the first clock.

        Between two estimates clocks are assumed to drift steadily. Before the first estimate and
        after the last estimate the error grows with the distance in time.
        """
        after = bisect_right(self._times, time_ns)
        if after in (0, len(self._points)):
            nearest_ns, offset, error = self._points[min(after, len(self._points) - 1)]
            return offset, error + round(abs(time_ns - nearest_ns) * _MOST_DRIFT)
        (begin, low, low_error), (end, high, high_error) = self._points[after - 1 : after + 1]
        share = (time_ns - begin) / (end - begin)
        return low + round((high - low) * share), max(low_error, high_error)


def align(records: Iterable[Record]) -> Alignment:
    """Compare the clocks of all ranks that have a `FileHeader` among `records`.

    The reference is the lowest rank. If a rank has several headers, its first header counts. Raises
    UsageError if there is no header.
    """
    headers: dict[int, FileHeader] = {}
    estimates: list[ClockOffset] = []
    for record in records:
        if isinstance(record, FileHeader):
            headers.setdefault(record.rank, record)
        elif isinstance(record, ClockOffset):
            estimates.append(record)
    if not headers:
        raise UsageError('no rank\'s clock is known: there is no "file" record')
    pairs: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for each in estimates:
        if each.rank not in headers or each.peer not in headers:
            continue
        here, there = _clock(headers[each.rank]), _clock(headers[each.peer])
        if here != there:
            point = each.at_ns, each.offset_ns, each.error_ns
            pairs.setdefault((here, there), []).append(point)
            back = each.at_ns + each.offset_ns, -each.offset_ns, each.error_ns
            pairs.setdefault((there, here), []).append(back)
    reference = min(headers)
    ways = {pair: _Offsets(points) for pair, points in pairs.items()}
    return Alignment(headers, _paths(_clock(headers[reference]), ways), reference)


def _clock(header: FileHeader) -> str:
    """Return the name of the rank's clock; an unnamed clock gets a name that no other clock has."""
    return header.clock or f"rank {header.rank}"


def _paths(
    reference: str, ways: Mapping[tuple[str, str], _Offsets]
) -> dict[str, tuple[_Offsets, ...]]:
    """Return each clock's path to the reference clock with the smallest error (Dijkstra)."""
    found: dict[str, tuple[_Offsets, ...]] = {}
    order = count()  # Ties are decided by the order of insertion.
    queue: list[tuple[int, int, str, tuple[_Offsets, ...]]] = [(0, next(order), reference, ())]
    while queue:
        error_ns, _, clock, steps = heapq.heappop(queue)
        if clock in found:
            continue
        found[clock] = steps
        for (here, there), offsets in ways.items():
            if there == clock and here not in found:
                known = error_ns + offsets.error_ns, next(order), here, (offsets, *steps)
                heapq.heappush(queue, known)
    return found

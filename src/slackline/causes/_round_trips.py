"""Round trips of rails before and after a disturbance, from the reports of the ranks.

A rank's verdict on a link needs a latency far beyond the link's usual spread. Where queues vary,
some links of a slow switch get no verdict, but their round trips have grown all the same.
"""

from statistics import median

from slackline.history import Job

__all__ = ["RoundTrips"]

_SETTLED_NS = 300_000_000
"""The time after the begin of a disturbance from which on a report tells of it."""

_MOST_BEFORE = 30
"""The most reports of one end before the disturbance that give the usual round trip."""

_SHARE = 0.5
"""The least growth of a round trip, as a share of the other links' additional latency."""


class RoundTrips:
    """The round trips of a job's rails."""

    def __init__(self, job: Job) -> None:
        """Read the reports that `job` keeps."""
        self._job = job

    def grown(self, one: int, other: int, rail: int, since_ns: int, over_ns: int) -> bool | None:
        """Return whether the round trip between two ranks has grown since a Unix time.

        It has grown if all later reports of both ends are above the usual one by half of `over_ns`,
        the additional latency of other links. None means that no later report has been read yet. A
        rail without earlier reports has not grown.
        """
        usual: list[int] = []
        later: list[int] = []
        for ends in ((one, other), (other, one)):
            link = self._job.links.get((*ends, rail))
            before = 0
            for time_ns, report in () if link is None else reversed(link.reports):
                if not report.round_trip_ns:
                    continue
                if time_ns >= since_ns + _SETTLED_NS:
                    later.append(report.round_trip_ns)
                elif time_ns <= since_ns and before < _MOST_BEFORE:
                    usual.append(report.round_trip_ns)
                    before += 1
                elif time_ns <= since_ns:
                    break
        if not usual:
            return False
        if not later:
            return None
        return min(later) >= median(usual) + _SHARE * over_ns

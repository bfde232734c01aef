"""The reports of one rail of a link, from the rank at one of its ends."""

from collections import deque
from itertools import islice

from slackline.records import LinkReport

__all__ = ["Link"]

_KEPT_REPORTS = 600
"""The number of reports that are kept: ten minutes with one report a second."""


class Link:
    """A rail from `rank` to `peer`: its latest reports, and sums over all of them."""

    def __init__(self, rank: int, peer: int, rail: int) -> None:
        self.rank = rank
        """The rank that reports, in the job."""
        self.peer = peer
        """The rank at the other end."""
        self.rail = rail
        """The index of the rail in its link."""
        self.reports: deque[tuple[int, LinkReport]] = deque(maxlen=_KEPT_REPORTS)
        """The latest reports, each with its Unix time in nanoseconds."""
        self.sent_bytes = 0
        """Bytes that the rank has sent since the beginning."""
        self.received_bytes = 0
        """Bytes that the rank has received since the beginning."""
        self.packets = 0
        """Packets sent since the beginning: datagrams, or TCP segments with data."""
        self.resent = 0
        """Packets sent again since the beginning."""
        self.least_round_trip_ns = 0
        """The shortest round trip of a probe since the beginning; 0 before the first."""
        self.sending_ns = 0
        """The Unix time of the latest report with bytes sent; 0 before the first."""
        self.receiving_ns = 0
        """The Unix time of the latest report with bytes received; 0 before the first."""
        self.count = 0
        """The number of reports since the beginning."""
        self.latest_ns = 0
        """The Unix time of the latest report; 0 before the first."""

    def take(self, time_ns: int, report: LinkReport) -> None:
        """Add a report that was written at the Unix time `time_ns`."""
        self.reports.append((time_ns, report))
        self.sent_bytes += report.sent_bytes
        self.received_bytes += report.received_bytes
        self.packets += report.packets
        self.resent += report.resent
        self.count += 1
        self.latest_ns = time_ns
        if report.sent_bytes:
            self.sending_ns = max(self.sending_ns, time_ns)
        if report.received_bytes:
            self.receiving_ns = max(self.receiving_ns, time_ns)
        if report.least_round_trip_ns:
            known_ns = self.least_round_trip_ns or report.least_round_trip_ns
            self.least_round_trip_ns = min(known_ns, report.least_round_trip_ns)

    def latest_reports(self, count: int) -> list[LinkReport]:
        """Return the latest `count` reports, or fewer, the latest one first."""
        return [report for _, report in islice(reversed(self.reports), count)]

    @property
    def latest(self) -> LinkReport:
        """The latest report. Raises IndexError before the first one."""
        return self.reports[-1][1]

    @property
    def sent_bits_per_second(self) -> float:
        """The rate towards the peer in the latest report's interval."""
        return self.latest.sent_bytes * 8e9 / max(self.latest.interval_ns, 1)

    @property
    def received_bits_per_second(self) -> float:
        """The rate from the peer in the latest report's interval."""
        return self.latest.received_bytes * 8e9 / max(self.latest.interval_ns, 1)

"""Times of all ranks on one clock, as far as probes of links allow."""

from slackline.monitor import Job, Rank

__all__ = ["Clocks"]


class Clocks:
    """Conversions of times of each rank's host to Unix time of the lowest rank's host."""

    def __init__(self, job: Job) -> None:
        """Compare the clocks of the ranks of `job`, of which at least one has written."""
        self._alignment = job.alignment()
        self.apart = [number for number in job.ranks if number not in self._alignment]
        """The ranks whose clock cannot be compared: their times stay those of their own host."""

    def from_monotonic(self, rank: Rank, monotonic_ns: int) -> int:
        """Convert a time of the monotonic clock of the rank's host to common Unix time, in ns."""
        if rank.number in self.apart:
            return rank.unix_ns(monotonic_ns)
        return self._alignment.unix_ns(rank.number, monotonic_ns)

    def from_unix(self, rank: Rank, time_ns: int) -> int:
        """Convert a Unix time of the rank's host to common Unix time, in nanoseconds."""
        if rank.number in self.apart:
            return time_ns
        monotonic_ns = self._alignment.from_unix(rank.number, time_ns)
        return self._alignment.unix_ns(rank.number, monotonic_ns)

"""Whether a sender's bytes wait in its own queue: its NIC does not take them as fast as usual."""

from collections import deque

from slackline.health._options import HealthOptions
from slackline.health._samples import RailSample

__all__ = ["Queues"]

_RECENT = 4
_FOLLOW = 0.05


class Queues:
    """One rail's queue at its sender. `grown` looks at the mean of the last samples."""

    def __init__(self, options: HealthOptions) -> None:
        self._options = options
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._usual = 0.0

    def take(self, sample: RailSample, *, calm: bool) -> None:
        """Takes a sample; in calm times it tells what is usual."""
        if sample.unconfirmed_bytes:
            self._recent.append(sample.queued_bytes)
            if calm:
                self._usual += _FOLLOW * (sample.queued_bytes - self._usual)

    @property
    def grown(self) -> bool:
        """Whether clearly more waits than usual."""
        if not self._recent:
            return False
        mean = sum(self._recent) / len(self._recent)
        return mean > 2 * self._usual + self._options.queue_bytes

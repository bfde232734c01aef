"""A detector of send queues that grow because a NIC takes bytes more slowly than before."""

from collections import deque

from slackline.detect._options import HealthOptions
from slackline.detect._samples import RailSample

__all__ = ["Queues"]

_RECENT = 4
_FOLLOW = 0.05


class Queues:
    """The send queue of one rail, judged by the mean of the last samples."""

    def __init__(self, options: HealthOptions) -> None:
        self._options = options
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._baseline = 0.0

    def take(self, sample: RailSample, *, calm: bool) -> None:
        """Add a sample of the rail; samples without a slowdown (`calm`) update the baseline."""
        if sample.unconfirmed_bytes:
            self._recent.append(sample.queued_bytes)
            if calm:
                self._baseline += _FOLLOW * (sample.queued_bytes - self._baseline)

    @property
    def grown(self) -> bool:
        """Whether clearly more bytes wait in the queue than the baseline."""
        if not self._recent:
            return False
        mean = sum(self._recent) / len(self._recent)
        return mean > 2 * self._baseline + self._options.queue_bytes

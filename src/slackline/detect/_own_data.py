"""The time that a rail's own data may take on their way before a probe, which is no longer delay.

A probe waits behind the data that were sent before it. A sender has so many unacknowledged bytes on
their way at most, and the path carries them at the best rate that it has ever had: what a probe
waits longer than that is a delay of the path, or a lower rate.
"""

from collections import deque
from dataclasses import dataclass

from slackline.detect._options import HealthOptions
from slackline.detect._samples import RailSample

__all__ = ["OwnData"]

_RECENT = 8
"""The number of samples whose largest number of unacknowledged bytes counts."""
_LEAST_NS = 100_000_000
"""The least length of an interval whose rate is measured."""
_BUSY = 0.5
"""The least part of an interval in which data were on their way, if its rate counts."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """The time and counters at the start of an interval."""

    at_ns: int
    confirmed_bytes: int
    received_bytes: int
    busy_ns: int


class OwnData:
    """The data before the probes of one rail, in both directions, until the latest sample."""

    def __init__(self, options: HealthOptions) -> None:
        self._least_bytes = options.bulk_bytes
        self._mark: _Mark | None = None
        self._unconfirmed: deque[int] = deque(maxlen=_RECENT)
        self._last = 0.0
        self._best = 0.0
        """The best rate of two consecutive intervals, in bytes per nanosecond."""
        self._sent = self._received = False
        """Whether much data went, or came, in the latest interval."""

    @property
    def there_ns(self) -> float:
        """The most time in which the sending direction carries the data before a probe."""
        return self._time_of(max(self._unconfirmed, default=0)) if self._sent else 0.0

    @property
    def here_ns(self) -> float:
        """The same for the receiving direction: the peer is taken to send ahead as far as we do."""
        return self._time_of(max(self._unconfirmed, default=0)) if self._received else 0.0

    def take(self, now_ns: int, sample: RailSample) -> None:
        """Add a sample of the rail that was read at `now_ns`."""
        self._unconfirmed.append(sample.unconfirmed_bytes)
        mark = _Mark(now_ns, sample.confirmed_bytes, sample.received_bytes, sample.busy_ns)
        before = self._mark
        if before is not None and now_ns - before.at_ns < _LEAST_NS:
            return
        self._mark = mark
        if before is None or mark.confirmed_bytes < before.confirmed_bytes:
            self._sent = self._received = False
            return
        carried = mark.confirmed_bytes - before.confirmed_bytes
        received = mark.received_bytes - before.received_bytes
        busy_ns, lasting_ns = mark.busy_ns - before.busy_ns, mark.at_ns - before.at_ns
        self._sent = carried >= self._least_bytes
        self._received = received >= self._least_bytes
        rate = received / lasting_ns
        if self._sent and busy_ns >= _BUSY * lasting_ns:
            rate = max(rate, carried / busy_ns)
        self._best = max(self._best, min(rate, self._last))
        self._last = rate

    def _time_of(self, count: int) -> float:
        """Return the time in nanoseconds in which the path carries so many bytes at its best."""
        return count / self._best if self._best else 0.0

"""The time that a rail's own data may take on their way before a probe, which is no longer delay.

A probe waits behind the data that were sent before it. A sender has so many unacknowledged bytes on
their way at most, and the path carries them at the best rate that it has ever had: what a probe
waits longer than that is a delay of the path, or a lower rate.

Unacknowledged data need not wait before a probe: on a longer path more of them are on the way. So
the part of that time that probes usually waited is learned, and only that part is explained.
"""

from collections import deque
from dataclasses import dataclass

from slackline.detect._options import HealthOptions
from slackline.detect._samples import RailSample

__all__ = ["OwnData", "OwnShare"]

_RECENT = 8
"""The number of samples whose largest number of unacknowledged bytes counts."""
_EVERY = 16
"""The number of readings after which the share is computed again."""
_LEAST_NS = 100_000_000
"""The least length of an interval whose rate is measured."""
_BUSY = 0.5
"""The least part of an interval in which data were on their way, if its rate counts."""


_READINGS = 256
_LEAST_READINGS = 128
"""A delay must have its verdict before its readings can be a tenth of so many."""
_LEAST_OWN_NS = 1_000_000
"""The least time of own data that shows how long probes wait behind them."""
_HIGH = 0.9
"""The part of the readings that the learned share explains. Most of a training's time may pass
without much data on the way."""


class OwnShare:
    """The share of the own data's time that probes of one direction usually wait, from 0 to 1.

    Until enough readings are known, the share is 1.
    """

    def __init__(self) -> None:
        self.value = 1.0
        self._readings: deque[float] = deque(maxlen=_READINGS)
        self._due = _LEAST_READINGS

    def add(self, waited_ns: float, own_ns: float) -> None:
        """Add a calm reading: probes took `waited_ns` longer than an empty path takes."""
        if own_ns < _LEAST_OWN_NS:
            return
        self._readings.append(min(max(waited_ns, 0.0) / own_ns, 1.0))
        self._due -= 1
        if self._due <= 0:
            self._due = _EVERY
            self.value = sorted(self._readings)[int(_HIGH * len(self._readings))]


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

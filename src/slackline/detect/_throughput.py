"""The bandwidth of a rail's sending direction: acknowledged bytes divided by busy time.

Only similar intervals are compared. An interval must move enough bytes to be limited by bandwidth
and not by round trips, and its frames must have about the same mean size as the frames of the other
intervals. A reading is the faster of two consecutive intervals: a rank that pauses slows one
interval, a slow link slows all.
"""

from dataclasses import dataclass

from slackline.detect._baseline import Baseline
from slackline.detect._cusum import Cusum
from slackline.detect._options import HealthOptions
from slackline.detect._runs import Runs
from slackline.detect._samples import RailSample

__all__ = ["Throughput"]

_MEMORY = 128
_EVERY = 8
_LEVEL_GAIN = 0.3
_SURE = 32
_MOST_EVIDENCE = 8.0
_MOST_NOISE = 0.4
"""The upper bound of the noise as a fraction of the rate, so that a halved rate is always found."""
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Mark:
    """The time and counters at the start of an interval."""

    at_ns: int
    confirmed_bytes: int
    busy_ns: int
    frames: int


class Throughput:
    """The bandwidth detector of the sending direction of one rail."""

    def __init__(self, options: HealthOptions) -> None:
        self.cusum = Cusum(options.evidence, options.recovery_evidence / 2)
        self.rate = 0.0
        """Bytes per second: smoothed during a change, else the last reading."""
        self.baseline_rate = 0.0
        """The baseline for the last interval's frame size, in bytes per second; 0 while unknown."""
        self._options = options
        self._mark: _Mark | None = None
        self._last = 0.0
        self._last_ns = 0
        self._kind = 0
        self._baseline: dict[int, Baseline] = {}
        self._runs = Runs(options.evidence, sure=_SURE, most=_MOST_EVIDENCE)

    def take(self, now_ns: int, sample: RailSample, baseline_ns: int, *, judge: bool) -> None:
        """Add a sample that was read at `now_ns`; `baseline_ns` is the baseline one-way latency.

        With `judge` False the sample only starts a new interval. The caller passes False while a
        slow return path delays the acknowledgements and so spoils the readings.
        """
        mark = _Mark(now_ns, sample.confirmed_bytes, sample.busy_ns, sample.frames_sent)
        before = self._mark
        if before is None or mark.confirmed_bytes < before.confirmed_bytes or not judge:
            self._mark = mark
            self._last = 0.0
            return
        carried = mark.confirmed_bytes - before.confirmed_bytes
        busy_ns = mark.busy_ns - before.busy_ns
        least_ns = max(1, 2 * baseline_ns * self._options.bulk_round_trips)
        if carried < self._options.bulk_bytes or busy_ns < least_ns:
            if now_ns - before.at_ns > _NS:
                self._mark = mark
            return
        self._mark = mark
        mean = carried // max(1, mark.frames - before.frames)
        if mean >= self._options.bulk_frame_bytes:
            self._read(mean.bit_length() // 2, carried * _NS / busy_ns, before.at_ns)

    def _read(self, kind: int, rate: float, began_ns: int) -> None:
        """Judge a rate against the baseline of frames of this size class (`kind`)."""
        last, last_ns, same = self._last, self._last_ns, kind == self._kind
        self._last, self._last_ns, self._kind = rate, began_ns, kind
        if not last or not same:
            return
        reading = max(rate, last)
        options = self._options
        baseline = self._baseline.get(kind)
        if baseline is None:
            baseline = self._baseline[kind] = Baseline(
                least=options.learn_intervals,
                memory=_MEMORY,
                every=_EVERY,
                noise_factor=options.noise_factor,
            )
        if baseline.known:
            self.baseline_rate = -baseline.middle
            missing = 1 - reading / self.baseline_rate
            noise = min(baseline.scatter / self.baseline_rate, _MOST_NOISE)
            threshold = max(options.least_change, noise)
            limit = self.cusum.threshold / 2 if self.cusum.active else threshold
            self._runs.take(late=missing >= limit, told=self.cusum.active)
            self.cusum.evidence = self._runs.evidence
            turned = self.cusum.take(missing, threshold, last_ns)
            following = self.cusum.active and not turned
            self.rate += (_LEVEL_GAIN if following else 1.0) * (reading - self.rate)
        if not self.cusum.active:
            baseline.add(-reading)

"""Detection of packet loss in a rail's sending direction, from the packets that were sent again."""

from slackline.detect._baseline import Baseline
from slackline.detect._cusum import Cusum
from slackline.detect._options import HealthOptions
from slackline.detect._runs import Runs
from slackline.detect._samples import RailSample

__all__ = ["Loss"]

_MEMORY = 64
_EVERY = 8
_LEVEL_GAIN = 0.3
_SURE = 32
_MOST_EVIDENCE = 8.0


class Loss:
    """The packet loss detector of the sending direction of one rail.

    A reading is the lower loss of two consecutive intervals.
    """

    def __init__(self, options: HealthOptions) -> None:
        self.cusum = Cusum(options.evidence, options.recovery_evidence / 2)
        self.share = 0.0
        """The lost fraction of the packets, while a change of the loss is active."""
        self._options = options
        self._baseline = Baseline(
            least=options.learn_intervals,
            memory=_MEMORY,
            every=_EVERY,
            noise_factor=options.noise_factor,
        )
        self._runs = Runs(options.evidence, sure=_SURE, most=_MOST_EVIDENCE)
        self._mark: tuple[int, int, int] | None = None
        self._last: tuple[float, int] | None = None

    @property
    def baseline_share(self) -> float:
        """The baseline packet loss, as a fraction of all packets."""
        return self._baseline.middle

    def take(self, now_ns: int, sample: RailSample) -> None:
        """Add a sample of the rail that was read at `now_ns`."""
        mark = now_ns, sample.packets_sent, sample.packets_resent
        before = self._mark
        if before is None or mark[1] < before[1] or mark[2] < before[2]:
            self._mark, self._last = mark, None
            return
        sent = mark[1] - before[1]
        if sent < self._options.bulk_packets:
            return
        self._mark = mark
        reading = (mark[2] - before[2]) / sent
        last, self._last = self._last, (reading, before[0])
        if last is not None:
            options = self._options
            least = options.least_udp_loss if sample.kind == "udp" else options.least_loss
            self._read(reading, *last, least=least)

    def _read(self, reading: float, last: float, began_ns: int, *, least: float) -> None:
        """Judge the lower loss of two consecutive intervals and update the baseline."""
        lower = min(reading, last)
        if self._baseline.known:
            threshold = max(least, self._baseline.scatter)
            beyond = lower - self._baseline.middle
            limit = self.cusum.threshold / 2 if self.cusum.active else threshold
            self._runs.take(late=beyond >= limit, told=self.cusum.active)
            self.cusum.evidence = self._runs.evidence
            turned = self.cusum.take(beyond, threshold, began_ns)
            fresh = turned or not self.cusum.active
            self.share += (1.0 if fresh else _LEVEL_GAIN) * (reading - self.share)
        if not self.cusum.active:
            self._baseline.add(lower)

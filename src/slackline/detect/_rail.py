"""The health of one rail: all detectors, which read samples from one end of the rail."""

from slackline.detect._latency import Latency, OneWayDetector
from slackline.detect._loss import Loss
from slackline.detect._options import HealthOptions
from slackline.detect._own_data import OwnData
from slackline.detect._queues import Queues
from slackline.detect._samples import RailSample
from slackline.detect._state import DirectionState, Shift
from slackline.detect._throughput import Throughput

__all__ = ["RailHealth"]


class RailHealth:
    """All health detectors of one rail, at one end of the rail.

    Samples must arrive in the order of time. A rail that reconnects keeps its history.
    """

    def __init__(self, options: HealthOptions, sample: RailSample) -> None:
        self._evidence = options.evidence
        self.latency = Latency(options)
        self.throughput = Throughput(options)
        self.loss = Loss(options)
        self.queues = Queues(options)
        self._own_data = OwnData(options)
        self.last = sample
        self.down_since_ns: int | None = None
        self.gone_since_ns: int | None = None
        self._missing_since_ns: int | None = None
        self._why = ""

    def take(self, now_ns: int, sample: RailSample, why: str = "") -> None:
        """Add a sample that was read at `now_ns` to every detector.

        `why` is the engine's reason not to use the rail, if it does not.
        """
        self.last = sample
        self._why = why
        self.gone_since_ns = self._missing_since_ns = None
        self.down_since_ns = None if sample.up else self.down_since_ns or now_ns
        own = self._own_data
        own.take(now_ns, sample)
        for probe in sample.probes:
            self.latency.take(probe, own_there_ns=own.there_ns, own_here_ns=own.here_ns)
        back = self.latency.here.cusum
        # Acknowledgements take the return path; a delay on that path explains a low bandwidth.
        spoiled = back.active or back.score >= self._evidence
        self.throughput.take(now_ns, sample, self.latency.baseline_ns, judge=not spoiled)
        self.loss.take(now_ns, sample)
        slow = self.latency.there.cusum.active or self.throughput.cusum.active
        self.queues.take(sample, calm=not slow)

    def gone(self, now_ns: int, why: str = "") -> None:
        """Record that the engine no longer has this rail at `now_ns`.

        The second consecutive call marks the rail as ended; after the first call the rail may still
        be reconnecting, unless `why` is the engine's reason for its loss.
        """
        self._why = why
        if why:
            self.gone_since_ns = self._missing_since_ns = self._missing_since_ns or now_ns
        elif self._missing_since_ns is None:
            self._missing_since_ns = now_ns
        else:
            self.gone_since_ns = self._missing_since_ns

    def states(self) -> tuple[DirectionState, DirectionState]:
        """Return the state of the sending direction and of the receiving direction."""
        return self._sending(), self._state(self.latency.here, (self.last.peer, self.last.rank))

    def _sending(self) -> DirectionState:
        bandwidth = loss = None
        if self.throughput.cusum.active:
            bandwidth = Shift(
                since_ns=self.throughput.cusum.since_ns,
                baseline=self.throughput.baseline_rate,
                now=self.throughput.rate,
            )
        if self.loss.cusum.active:
            loss = Shift(
                since_ns=self.loss.cusum.since_ns,
                baseline=self.loss.baseline_share,
                now=self.loss.share,
            )
        ends = self.last.rank, self.last.peer
        return self._state(self.latency.there, ends, bandwidth, loss, queueing=self.queues.grown)

    def _state(
        self,
        detector: OneWayDetector,
        ends: tuple[int, int],
        bandwidth: Shift | None = None,
        loss: Shift | None = None,
        queueing: bool | None = None,
    ) -> DirectionState:
        baseline_ns = self.latency.baseline_ns
        latency = None
        if detector.cusum.active and detector.level_ns > 0:
            now_ns = baseline_ns + detector.level_ns
            latency = Shift(since_ns=detector.cusum.since_ns, baseline=baseline_ns, now=now_ns)
        return DirectionState(
            source=ends[0],
            target=ends[1],
            rail=self.last.rail,
            name=self.last.name,
            known=self.latency.known,
            baseline_ns=baseline_ns,
            latency=latency,
            bandwidth=bandwidth,
            loss=loss,
            queueing=queueing,
            silent_since_ns=self.down_since_ns,
            cut_since_ns=self.gone_since_ns,
            why=self._why,
        )

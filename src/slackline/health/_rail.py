"""Everything that is known about the health of one rail, from the samples of one of its ends."""

from slackline.health._latency import Latency, Way
from slackline.health._loss import Loss
from slackline.health._options import HealthOptions
from slackline.health._queues import Queues
from slackline.health._samples import RailSample
from slackline.health._state import Shift, WayState
from slackline.health._throughput import Throughput

__all__ = ["RailHealth"]


class RailHealth:
    """One rail. Fed with samples in the order of time; a rail that is dialled again goes on."""

    def __init__(self, options: HealthOptions, sample: RailSample) -> None:
        self._evidence = options.evidence
        self.latency = Latency(options)
        self.throughput = Throughput(options)
        self.loss = Loss(options)
        self.queues = Queues(options)
        self.last = sample
        self.down_since_ns: int | None = None
        self.gone_since_ns: int | None = None
        self._missing_since_ns: int | None = None

    def take(self, now_ns: int, sample: RailSample) -> None:
        """Takes a sample that was read at `now_ns`."""
        self.last = sample
        self.gone_since_ns = self._missing_since_ns = None
        self.down_since_ns = None if sample.up else self.down_since_ns or now_ns
        for probe in sample.probes:
            self.latency.take(probe)
        back = self.latency.here.change
        # Confirmations come the way back: where that is late, or seems to be, it is to blame.
        spoiled = back.active or back.score >= self._evidence
        self.throughput.take(now_ns, sample, self.latency.usual_ns, judge=not spoiled)
        self.loss.take(now_ns, sample)
        slow = self.latency.there.change.active or self.throughput.change.active
        self.queues.take(sample, calm=not slow)

    def gone(self, now_ns: int) -> None:
        """The engine has no such rail any more; told twice in a row, it is not being replaced."""
        if self._missing_since_ns is None:
            self._missing_since_ns = now_ns
        else:
            self.gone_since_ns = self._missing_since_ns

    def states(self) -> tuple[WayState, WayState]:
        """The direction that this end sends in, and the one that it receives from."""
        return self._sending(), self._state(self.latency.here, (self.last.peer, self.last.rank))

    def _sending(self) -> WayState:
        bandwidth = loss = None
        if self.throughput.change.active:
            bandwidth = Shift(
                since_ns=self.throughput.change.since_ns,
                usual=self.throughput.usual_rate,
                now=self.throughput.rate,
            )
        if self.loss.change.active:
            loss = Shift(
                since_ns=self.loss.change.since_ns,
                usual=self.loss.usual_share,
                now=self.loss.share,
            )
        ends = self.last.rank, self.last.peer
        return self._state(self.latency.there, ends, bandwidth, loss, queueing=self.queues.grown)

    def _state(
        self,
        way: Way,
        ends: tuple[int, int],
        bandwidth: Shift | None = None,
        loss: Shift | None = None,
        queueing: bool | None = None,
    ) -> WayState:
        usual_ns = self.latency.usual_ns
        latency = None
        if way.change.active:
            now_ns = usual_ns + way.level_ns
            latency = Shift(since_ns=way.change.since_ns, usual=usual_ns, now=now_ns)
        return WayState(
            source=ends[0],
            target=ends[1],
            rail=self.last.rail,
            name=self.last.name,
            known=self.latency.known,
            usual_ns=usual_ns,
            latency=latency,
            bandwidth=bandwidth,
            loss=loss,
            queueing=queueing,
            silent_since_ns=self.down_since_ns,
            cut_since_ns=self.gone_since_ns,
        )

"""Estimates of a rail's one-way latencies from its probes: the baseline, and the present excess
over it.

A probe gives `received - sent` for the outbound direction and `back - answered` for the inbound
direction. Each difference is the latency plus or minus the offset between the two clocks. `Clocks`
removes the offset up to a constant, and the constant cancels because only the excess over the
baseline is judged. Three rules keep noise and clocks from looking like a delay:

- A reading is the fastest of the last few probes. Jitter delays some probes, but a longer path
  delays all probes.
- Probes whose answers arrived together were held up together, by a rank that paused. Of such
  probes only the last one counts, because the answer to that probe waited least.
- The excess of one direction must also appear in the round trip, after the known excess of the
  other direction is subtracted. A clock error cannot change the round trip.
"""

from collections import deque
from dataclasses import dataclass, replace

from slackline.detect._baseline import Baseline
from slackline.detect._clocks import Clocks
from slackline.detect._cusum import Cusum
from slackline.detect._options import HealthOptions
from slackline.detect._own_data import OwnShare
from slackline.detect._runs import Runs
from slackline.detect._samples import Probe

__all__ = ["Latency", "OneWayDetector"]

_WINDOW_NS = 1_000_000_000
_WINDOW_PROBES = 8
"""The least duration and number of probes of a window; its fastest probe compares the clocks."""

_FOLLOW = 0.05
"""The fraction of a slow change of the path's latency that the baseline adopts in each window."""

_CLEAR = 5.0
"""The delay, as a multiple of the threshold, from which a reading scores 1. The value is high
because latencies have long tails.
"""

_MEMORY = 256
_EVERY = 16
_LEVEL_GAIN = 0.3
_SURE = 128
_MOST_EVIDENCE = 24.0
"""The largest evidence that a verdict can need: two or three seconds of traffic."""


@dataclass(slots=True)
class OneWayDetector:
    """The latency detector of one direction of a rail."""

    cusum: Cusum
    baseline: Baseline
    runs: Runs
    own_share: OwnShare
    floor: float = 0.0
    """The baseline of the fastest latency in nanoseconds, relative to the first probe."""
    excess_ns: float = 0.0
    """The last reading minus the baseline."""
    level_ns: float = 0.0
    """The smoothed size of the active change in nanoseconds; 0 without a change."""


class Latency:
    """The latency detectors of both directions of a rail. All times come from the probes."""

    def __init__(self, options: HealthOptions) -> None:
        self.there, self.here = (_one_way_detector(options) for _ in range(2))
        self.clocks = Clocks()
        self.last_ns = 0
        """The time at which the last counted probe came back."""
        self._options = options
        self._first: tuple[int, int] | None = None
        self._last = Probe(0, 0, 0, 0)
        self._recent: deque[tuple[float, float, int]] = deque(maxlen=options.fastest_of)
        self._before = (replace(self.there.cusum), replace(self.here.cusum))
        self._window: list[tuple[float, float]] = []
        self._window_ns = 0
        self._windows = 0

    @property
    def known(self) -> bool:
        """Whether the baselines of both directions have been learned."""
        return self.there.baseline.known and self.here.baseline.known

    @property
    def baseline_ns(self) -> int:
        """The baseline one-way latency: half of the baseline round trip.

        The clocks of two hosts cannot tell how the round trip divides into its directions.
        """
        if self._first is None:
            return 0
        there, here = self.there, self.here
        round_trip = sum(self._first) + there.floor + here.floor
        return max(0, round((round_trip + there.baseline.middle + here.baseline.middle) / 2))

    def take(self, probe: Probe, *, own_there_ns: float = 0.0, own_here_ns: float = 0.0) -> None:
        """Add the next answered probe; a probe that is no newer than the last probe is ignored.

        In each direction the probe may have waited for so long behind the rail's own data, which is
        no evidence for a longer latency.
        """
        if probe.sent_ns <= self._last.sent_ns and self._first is not None:
            return
        there_ns = probe.received_ns - probe.sent_ns
        here_ns = probe.back_ns - probe.answered_ns
        if self._first is None:
            self._first = there_ns, here_ns
            self._window_ns = probe.sent_ns
        elif probe.sent_ns - self._last.sent_ns > self._options.idle_ns:
            self._resume(probe.sent_ns)
        offset = self.clocks.offset(probe.sent_ns)
        there = there_ns - self._first[0] - offset
        here = here_ns - self._first[1] + offset
        if self._held_up_with_last(probe):
            self._undo()
        else:
            self._before = (replace(self.there.cusum), replace(self.here.cusum))
        self._last = probe
        self.last_ns = probe.back_ns
        self._recent.append((there, here, probe.sent_ns))
        self._window.append((there, here))
        if len(self._recent) == self._options.fastest_of:
            self._read(own_there_ns, own_here_ns)
        if probe.sent_ns - self._window_ns >= _WINDOW_NS and len(self._window) >= _WINDOW_PROBES:
            self._compare(probe.sent_ns)

    def _held_up_with_last(self, probe: Probe) -> bool:
        """Return whether one pause held up both this probe and the last probe."""
        asked_apart = probe.sent_ns - self._last.sent_ns
        return bool(self._recent) and 2 * (probe.back_ns - self._last.back_ns) < asked_apart

    def _undo(self) -> None:
        """Remove the last probe and reset both change detectors to the state before that probe."""
        self._recent.pop()
        if self._window:
            self._window.pop()
        self.there.cusum, self.here.cusum = (replace(cusum) for cusum in self._before)

    def _resume(self, now_ns: int) -> None:
        """Discard the probes from before a pause, so that no reading contains both old and new."""
        self._recent.clear()
        self._window.clear()
        self._window_ns = now_ns

    def _read(self, own_there_ns: float, own_here_ns: float) -> None:
        """Make and judge one reading of each direction, from the fastest of the last probes."""
        there, here = self.there, self.here
        if not self._windows:
            return
        fastest_there = min(x for x, _, _ in self._recent) - there.floor
        fastest_here = min(x for _, x, _ in self._recent) - here.floor
        fastest_both = min(x + y for x, y, _ in self._recent) - there.floor - here.floor
        began_ns = self._recent[0][2]
        total = fastest_both - there.baseline.middle - here.baseline.middle
        levels = there.level_ns, here.level_ns
        baseline_ns = self.baseline_ns
        for detector, fastest, explained, own_ns in (
            (there, fastest_there, total - levels[1], own_there_ns),
            (here, fastest_here, total - levels[0], own_here_ns),
        ):
            usual_ns = detector.baseline.middle
            detector.excess_ns = min(fastest - usual_ns, explained)
            # Where probes usually wait behind own data, the baseline has a part of that time.
            most_ns = detector.own_share.value * own_ns - max(0.0, usual_ns)
            most_ns = max(0.0, most_ns) if detector.baseline.known else 0.0
            waited_ns = min(max(0.0, detector.excess_ns), most_ns)
            self._judge(detector, fastest, waited_ns, began_ns, baseline_ns)
            if not detector.cusum.active:
                detector.own_share.add(fastest, own_ns)

    def _judge(
        self,
        detector: OneWayDetector,
        fastest: float,
        waited_ns: float,
        began_ns: int,
        baseline_ns: int,
    ) -> None:
        """Judge one reading of one direction and update its detector and baseline.

        `waited_ns` is the part of the excess that the rail's own data explain.
        """
        options = self._options
        cusum, baseline, runs = detector.cusum, detector.baseline, detector.runs
        beyond_ns = detector.excess_ns - waited_ns
        threshold = max(
            options.least_delay_ns, options.least_change * baseline_ns, baseline.scatter
        )
        if baseline.known:
            limit = cusum.threshold / 2 if cusum.active else threshold
            runs.take(late=beyond_ns >= limit, told=cusum.active)
            cusum.evidence = runs.evidence
            cusum.take(beyond_ns, threshold, began_ns)
        if detector.cusum.active:
            gain = _LEVEL_GAIN if detector.level_ns else 1.0
            detector.level_ns += gain * (detector.excess_ns - detector.level_ns)
        else:
            detector.level_ns = 0.0
        if not cusum.active:
            known = baseline.known
            baseline.add(fastest - waited_ns)
            if baseline.known and not known:
                threshold = max(threshold, baseline.scatter)
                for reading in baseline.readings:
                    runs.take(late=reading - baseline.middle >= threshold, told=False)

    def _compare(self, now_ns: int) -> None:
        """Correct the clock offset and the baseline latency at the end of a window of probes."""
        there, here = self.there, self.here
        fastest_there = min(x for x, _ in self._window)
        fastest_here = min(x for _, x in self._window)
        fastest_both = min(x + y for x, y in self._window)
        self._window.clear()
        self._window_ns = now_ns
        self._windows += 1
        if self._windows == 1:
            there.floor, here.floor = fastest_there, fastest_here
            self.clocks.correct(now_ns, 0.0)
            return
        error_there, error_here = fastest_there - there.floor, fastest_here - here.floor
        path = (error_there + error_here) / 2
        error = (error_there - error_here) / 2
        limit = max(self._options.least_delay_ns, self._options.least_change * self.baseline_ns)
        if not (there.cusum.active or here.cusum.active):
            if fastest_both - fastest_there - fastest_here > 2 * limit:
                return  # A clock was set within this window; the next window shows by how much.
            if path < -limit or (abs(error) > limit and abs(path) < limit):
                self._begin_anew(now_ns, error, path)
                return
        # A window whose fastest probe was late too says nothing about the clocks.
        steady_there = not there.cusum.active and error_there <= limit
        steady_here = not here.cusum.active and error_here <= limit
        if steady_there and steady_here:
            follow = 1.0 if path < 0 and not self.known else _FOLLOW
            there.floor += follow * path
            here.floor += follow * path
            self.clocks.correct(now_ns, error)
        elif steady_here:
            self.clocks.correct(now_ns, -error_here)
        elif steady_there:
            self.clocks.correct(now_ns, error_there)

    def _begin_anew(self, now_ns: int, error: float, path: float) -> None:
        """Restart baseline and clock offset, after a clock was set or the path became faster."""
        self.there.floor += path
        self.here.floor += path
        self.clocks.step(now_ns, error)
        self._recent.clear()


def _one_way_detector(options: HealthOptions) -> OneWayDetector:
    """Create the latency detector of one direction."""
    baseline = Baseline(
        least=options.learn_probes,
        memory=_MEMORY,
        every=_EVERY,
        noise_factor=options.noise_factor,
    )
    cusum = Cusum(options.evidence, options.recovery_evidence, _CLEAR)
    runs = Runs(options.evidence, sure=_SURE, most=_MOST_EVIDENCE)
    return OneWayDetector(cusum, baseline, runs, OwnShare())

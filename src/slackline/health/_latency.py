"""Estimates of a rail's one-way latencies from its probes: the baseline, and the present excess
over it.

A probe gives `received - sent` for the outbound direction and `back - answered` for the inbound
one. Each is the latency plus or minus the offset between the two clocks. `Clocks` removes the
offset up to a constant, and the constant cancels because only the excess over the baseline is
judged. Three rules keep noise and clocks from looking like a delay:

- A reading is the fastest of the last few probes. Jitter delays some probes, a longer path all.
- Probes whose answers arrived together were held up together, by a rank that paused. Of such
  probes only the last one counts, because it waited least.
- The excess of one direction must also appear in the round trip, after the known excess of the
  other direction is subtracted. A clock error cannot change the round trip.
"""

from collections import deque
from dataclasses import dataclass, replace

from slackline.health._change import Change
from slackline.health._clocks import Clocks
from slackline.health._options import HealthOptions
from slackline.health._runs import Runs
from slackline.health._samples import Probe
from slackline.health._usual import Usual

__all__ = ["Latency", "Way"]

_WINDOW_NS = 1_000_000_000
_WINDOW_PROBES = 8
"""Clocks are compared by the fastest probe of a window of at least this time and this count."""

_FOLLOW = 0.05
"""The part of a slow change of the path that the baseline adopts in each window."""

_CLEAR = 5.0
"""The delay, in thresholds, from which a reading scores 1; high, as latencies have long tails."""

_MEMORY = 256
_EVERY = 16
_LEVEL_GAIN = 0.3
_SURE = 128
_MOST_EVIDENCE = 24.0
"""The largest evidence that a verdict can need: two or three seconds of traffic."""


@dataclass(slots=True)
class Way:
    """The latency detector of one direction of a rail."""

    change: Change
    usual: Usual
    runs: Runs
    floor: float = 0.0
    """The baseline of the fastest latency in nanoseconds, relative to the first probe."""
    excess_ns: float = 0.0
    """The last reading minus the baseline."""
    level_ns: float = 0.0
    """The smoothed size of the active change in nanoseconds; 0 without a change."""


class Latency:
    """The latency detectors of both directions of a rail. All times come from the probes."""

    def __init__(self, options: HealthOptions) -> None:
        self.there, self.here = (_way(options) for _ in range(2))
        self.clocks = Clocks()
        self.last_ns = 0
        """The time at which the last counted probe came back."""
        self._options = options
        self._first: tuple[int, int] | None = None
        self._last = Probe(0, 0, 0, 0)
        self._recent: deque[tuple[float, float, int]] = deque(maxlen=options.fastest_of)
        self._before = (replace(self.there.change), replace(self.here.change))
        self._window: list[tuple[float, float]] = []
        self._window_ns = 0
        self._windows = 0

    @property
    def known(self) -> bool:
        """Whether the baselines of both directions have been learned."""
        return self.there.usual.known and self.here.usual.known

    @property
    def usual_ns(self) -> int:
        """The baseline one-way latency: half of the baseline round trip.

        The clocks of two hosts cannot tell how the round trip divides into its directions.
        """
        if self._first is None:
            return 0
        there, here = self.there, self.here
        round_trip = sum(self._first) + there.floor + here.floor
        return max(0, round((round_trip + there.usual.middle + here.usual.middle) / 2))

    def take(self, probe: Probe) -> None:
        """Add the next answered probe; a probe that is not newer than the last one is ignored."""
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
            self._before = (replace(self.there.change), replace(self.here.change))
        self._last = probe
        self.last_ns = probe.back_ns
        self._recent.append((there, here, probe.sent_ns))
        self._window.append((there, here))
        if len(self._recent) == self._options.fastest_of:
            self._read()
        if probe.sent_ns - self._window_ns >= _WINDOW_NS and len(self._window) >= _WINDOW_PROBES:
            self._compare(probe.sent_ns)

    def _held_up_with_last(self, probe: Probe) -> bool:
        """Return whether this probe and the last one were held up together by a pause."""
        asked_apart = probe.sent_ns - self._last.sent_ns
        return bool(self._recent) and 2 * (probe.back_ns - self._last.back_ns) < asked_apart

    def _undo(self) -> None:
        """Remove the last probe and restore both change detectors to their state before it."""
        self._recent.pop()
        if self._window:
            self._window.pop()
        self.there.change, self.here.change = (replace(change) for change in self._before)

    def _resume(self, now_ns: int) -> None:
        """Discard the probes from before a pause, so that no reading mixes them with later ones."""
        self._recent.clear()
        self._window.clear()
        self._window_ns = now_ns

    def _read(self) -> None:
        """Make one reading of each direction from the fastest of the last probes, and judge it."""
        there, here = self.there, self.here
        if not self._windows:
            return
        fastest_there = min(x for x, _, _ in self._recent) - there.floor
        fastest_here = min(x for _, x, _ in self._recent) - here.floor
        fastest_both = min(x + y for x, y, _ in self._recent) - there.floor - here.floor
        began_ns = self._recent[0][2]
        total = fastest_both - there.usual.middle - here.usual.middle
        levels = there.level_ns, here.level_ns
        usual_ns = self.usual_ns
        self._judge(there, fastest_there, total - levels[1], began_ns, usual_ns)
        self._judge(here, fastest_here, total - levels[0], began_ns, usual_ns)

    def _judge(
        self, way: Way, fastest: float, explained: float, began_ns: int, usual_ns: int
    ) -> None:
        """Judge one reading of one direction and update its detector and baseline."""
        options = self._options
        change, usual, runs = way.change, way.usual, way.runs
        way.excess_ns = min(fastest - usual.middle, explained)
        threshold = max(options.least_delay_ns, options.least_change * usual_ns, usual.scatter)
        if usual.known:
            limit = change.threshold / 2 if change.active else threshold
            runs.take(late=way.excess_ns >= limit, told=change.active)
            change.evidence = runs.evidence
            change.take(way.excess_ns, threshold, began_ns)
        if way.change.active:
            gain = _LEVEL_GAIN if way.level_ns else 1.0
            way.level_ns += gain * (way.excess_ns - way.level_ns)
        else:
            way.level_ns = 0.0
        if not change.active:
            known = usual.known
            usual.add(fastest)
            if usual.known and not known:
                threshold = max(threshold, usual.scatter)
                for reading in usual.readings:
                    runs.take(late=reading - usual.middle >= threshold, told=False)

    def _compare(self, now_ns: int) -> None:
        """End a window of probes: correct the clock offset and the baseline latency by it."""
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
        limit = max(self._options.least_delay_ns, self._options.least_change * self.usual_ns)
        if not (there.change.active or here.change.active):
            if fastest_both - fastest_there - fastest_here > 2 * limit:
                return  # A clock was set within this window; the next window shows by how much.
            if path < -limit or (abs(error) > limit and abs(path) < limit):
                self._begin_anew(now_ns, error, path)
                return
        # A window whose fastest probe was late too says nothing about the clocks.
        steady_there = not there.change.active and error_there <= limit
        steady_here = not here.change.active and error_here <= limit
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


def _way(options: HealthOptions) -> Way:
    """Create the latency detector of one direction."""
    usual = Usual(
        least=options.learn_probes,
        memory=_MEMORY,
        every=_EVERY,
        noise_factor=options.noise_factor,
    )
    change = Change(options.evidence, options.recovery_evidence, _CLEAR)
    return Way(change, usual, Runs(options.evidence, sure=_SURE, most=_MOST_EVIDENCE))

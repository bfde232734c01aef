"""One-way latencies of a rail from its probes: what is usual, and how far it is exceeded now.

A probe gives `received - sent` on the way there and `back - answered` on the way back. Each is the
latency plus, or minus, the offset between the clocks. `Clocks` takes the offset out, up to a
constant that does not matter: only what exceeds the usual is judged. Three rules keep noise and
clocks from looking like a delay:

- A reading is the fastest of the last few probes. Jitter delays some probes, a longer path all.
- Probes whose answers came together were held up together, by a rank that paused: of them only
  the last one counts, which waited least.
- Whatever a direction exceeds its usual by, the round trip must exceed its own by as much, beside
  what is known of the other direction. No clock can do that.
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
"""Clocks are compared by the fastest probe of at least so long and so many."""

_FOLLOW = 0.05
"""Of a slow change of the path that the usual takes over with each window."""

_CLEAR = 5.0
"""A delay this many times what counts needs the least evidence; tails are long."""

_MEMORY = 256
_EVERY = 16
_LEVEL_GAIN = 0.3
_SURE = 128
_MOST_EVIDENCE = 24.0
"""Two or three seconds of traffic."""


@dataclass(slots=True)
class Way:
    """One direction of a rail."""

    change: Change
    usual: Usual
    runs: Runs
    floor: float = 0.0
    """The fastest latency that is usual, from the first probe's."""
    excess_ns: float = 0.0
    """The last reading above the usual."""
    level_ns: float = 0.0
    """What a change amounts to, smoothed; 0 without one."""


class Latency:
    """Both directions of a rail. Knows no clock of its own: time is that of the probes."""

    def __init__(self, options: HealthOptions) -> None:
        self.there, self.here = (_way(options) for _ in range(2))
        self.clocks = Clocks()
        self.last_ns = 0
        """When the last probe that was taken into account came back."""
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
        """Whether enough is known to judge."""
        return self.there.usual.known and self.here.usual.known

    @property
    def usual_ns(self) -> int:
        """The usual one-way latency: half of the usual round trip, as the halves are unknown."""
        if self._first is None:
            return 0
        there, here = self.there, self.here
        round_trip = sum(self._first) + there.floor + here.floor
        return max(0, round((round_trip + there.usual.middle + here.usual.middle) / 2))

    def take(self, probe: Probe) -> None:
        """Takes the next answer; one that is not newer than the last is passed over."""
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
        asked_apart = probe.sent_ns - self._last.sent_ns
        return bool(self._recent) and 2 * (probe.back_ns - self._last.back_ns) < asked_apart

    def _undo(self) -> None:
        """The last probe does not count after all."""
        self._recent.pop()
        if self._window:
            self._window.pop()
        self.there.change, self.here.change = (replace(change) for change in self._before)

    def _resume(self, now_ns: int) -> None:
        """After a pause: what was gathered before it is not compared with what comes."""
        self._recent.clear()
        self._window.clear()
        self._window_ns = now_ns

    def _read(self) -> None:
        """Judges the fastest of the last probes, direction by direction."""
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
        """Closes a window: what its fastest probes say about the clocks and the usual path."""
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
                return  # a clock was set within the window: the next one tells by how much
            if path < -limit or (abs(error) > limit and abs(path) < limit):
                self._begin_anew(now_ns, error, path)
                return
        # A window that even its fastest probe was late in tells nothing about the clocks.
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
        """A clock was set, or the path became faster than it ever was."""
        self.there.floor += path
        self.here.floor += path
        self.clocks.step(now_ns, error)
        self._recent.clear()


def _way(options: HealthOptions) -> Way:
    usual = Usual(
        least=options.learn_probes,
        memory=_MEMORY,
        every=_EVERY,
        noise_factor=options.noise_factor,
    )
    change = Change(options.evidence, options.recovery_evidence, _CLEAR)
    return Way(change, usual, Runs(options.evidence, sure=_SURE, most=_MOST_EVIDENCE))

"""The traces of link delays: one recorded run, and generated traces with fixed seeds.

A trace says which delay each link of a pipeline has at which time. Both directions of a link have
the same delay.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from _harness.recorded_run import EVENTS, LASTS

SECONDS = 600
"""The length of each generated trace in seconds."""
LEVELS_MS = tuple(range(0, 61, 10))
"""The delays from which random delays are drawn."""
_MS_PER_S = 1000

Steps = tuple[tuple[int, int], ...]
"""The delays of a link as (start, delay in ms), in order of the starts, the first at 0."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The delays of a pipeline's links over time."""

    name: str
    kind: str
    """The kind of the delays: "periodic", "drift", "bursts", "random", "none" or "recorded"."""
    links: dict[int, Steps]
    """The delays of each link that is ever slow."""
    stages: int = 4
    microbatches: int = 12
    iterations: int | None = None
    """The number of iterations for a trace in iterations; None for a trace in milliseconds.

    Starts of delays are numbers of iterations or milliseconds accordingly.
    """

    def delays_ms(self, place: float) -> tuple[int, ...]:
        """Return the delay of each link at a time in ms, or in the iteration `place`."""
        return tuple(_at(self.links.get(link, ((0, 0),)), place) for link in range(self.stages - 1))

    def changes(self, link: int, since: float, until: float) -> Steps:
        """Return the changes of a link's delay after `since` and before `until`."""
        steps = self.links.get(link, ())
        return tuple((start, delay) for start, delay in steps if since < start < until)


def _at(steps: Steps, place: float) -> int:
    return steps[bisect_right(steps, place, key=lambda step: step[0]) - 1][1]


def _episodes(draw: Iterator[tuple[float, float, int]]) -> Steps:
    """Return the delays of a link that is slow in episodes.

    Each episode is (gap before it in s, length in s, delay in ms).
    """
    found, now = [(0, 0)], 0.0
    while now < SECONDS:
        gap, length, delay = next(draw)
        found.append((round((now + gap) * _MS_PER_S), delay))
        now += gap + length
        found.append((round(now * _MS_PER_S), 0))
    return tuple(found)


def _every(period: float, length: float, delay: int, *, late: float = 0.0, seed: int = 0) -> Steps:
    """Return periodic episodes whose starts are late by up to `late` seconds, drawn from a seed."""
    random = Random(seed)
    starts = [turn * period + random.uniform(0, late) for turn in range(1, int(SECONDS / period))]
    found = [(0, 0)]
    for start in starts:
        found += [(round(start * _MS_PER_S), delay), (round((start + length) * _MS_PER_S), 0)]
    return tuple(found)


def _triangle(period: int, most: int) -> Steps:
    """Return delays that rise to `most` ms and fall back to 0 in each period of seconds."""
    half = period * _MS_PER_S // 2
    up = [(round(value * half / most), value) for value in range(most)]
    down = [(half + round(value * half / most), most - value) for value in range(most)]
    turns = range(0, SECONDS * _MS_PER_S, 2 * half)
    return tuple((turn + start, delay) for turn in turns for start, delay in up + down)


def _bursts(seed: int, length: Callable[[Random], float]) -> Steps:
    random = Random(seed)

    def draw() -> Iterator[tuple[float, float, int]]:
        while True:
            yield random.expovariate(1 / 25) + 2, length(random), 60

    return _episodes(draw())


def _redrawn(seed: int, least_ms: int, most_ms: int) -> Steps:
    """Return delays that are drawn anew after each random time."""
    random, found, now = Random(seed), [], 0
    while now < SECONDS * _MS_PER_S:
        found.append((now, random.choice(LEVELS_MS)))
        now += random.randint(least_ms, most_ms)
    return tuple(found)


def _walk(seed: int) -> Steps:
    """Return a random walk: every two seconds the delay changes by up to 6 ms."""
    random, delay, found = Random(seed), 30, []
    for start in range(0, SECONDS * _MS_PER_S, 2 * _MS_PER_S):
        found.append((start, delay))
        delay = min(60, max(0, delay + random.randint(-6, 6)))
    return tuple(found)


def _stopping() -> Steps:
    """Return episodes every 20 s up to the middle of the trace, and every 31 s after it."""
    half = SECONDS * _MS_PER_S // 2
    first = [step for step in _every(20, 6, 60) if step[0] < half - 10_000]
    second = [(half + start, delay) for start, delay in _every(31, 4, 60) if start < half - 31_000]
    return (*first, *second)


def _recorded() -> dict[int, Steps]:
    """Return the slow phases of the large-scale run of Adaptra's authors (arXiv 2504.19232).

    The run has 1,200 iterations on 8 stages. Its last event, the failure of a NIC, is left out: the
    delays of the links do not show it.
    """
    links: dict[int, Steps] = {}
    for start, slow, delay in EVENTS:
        for link in slow:
            links[link] = (*links.get(link, ((0, 0),)), (start, delay), (start + LASTS, 0))
    return links


TRACES = (
    Trace(name="healthy", kind="none", links={}),
    Trace(name="every 40 s for 5 s", kind="periodic", links={2: _every(40, 5, 30)}),
    Trace(name="every 20 s for 6 s", kind="periodic", links={2: _every(20, 6, 60)}),
    Trace(
        name="every 20 s for 6 s, up to 1 s late",
        kind="periodic",
        links={0: _every(20, 6, 60, late=1.0, seed=1)},
    ),
    Trace(
        name="two links, every 30 s and 50 s",
        kind="periodic",
        links={0: _every(30, 10, 40), 2: _every(50, 10, 60)},
    ),
    Trace(name="waves of 60 s", kind="periodic", links={2: _triangle(60, 60)}),
    Trace(name="periodic, then another period", kind="periodic", links={2: _stopping()}),
    Trace(name="drift up and down", kind="drift", links={2: _triangle(SECONDS, 60)}),
    Trace(
        name="bursts of 5.5-6.5 s",
        kind="bursts",
        links={2: _bursts(2, lambda random: random.uniform(5.5, 6.5))},
    ),
    Trace(
        name="bursts of any length",
        kind="bursts",
        links={2: _bursts(3, lambda random: random.expovariate(1 / 6))},
    ),
    Trace(
        name="redrawn every 2-20 s",
        kind="random",
        links={link: _redrawn(4 + link, 2000, 20_000) for link in range(3)},
    ),
    Trace(
        name="redrawn every 50-100 ms",
        kind="random",
        links={link: _redrawn(7 + link, 50, 100) for link in range(3)},
    ),
    Trace(name="random walk", kind="random", links={2: _walk(10)}),
    Trace(
        name="1,200 iterations",
        kind="recorded",
        links=_recorded(),
        stages=8,
        microbatches=24,
        iterations=1200,
    ),
)
"""All traces."""
QUICK = ("every 20 s for 6 s", "bursts of any length")
"""The names of the traces that `--quick` simulates."""
NOISE_MS = 0.3
"""The standard deviation of the noise that is added to each measured delay."""
NOISE_SEED = 11

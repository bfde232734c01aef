"""Delays of a link over time: constant, drawn at random, or from the trace of a fault injector.

    delay         0 ---- 30 ms ------- 12 ms --- 41 ms ----      from the start of the experiment
                  |                  |         |
    drawn         each delay lasts for a drawn time

A trace has a line for each change, "time;links;delays": "340;2_3,6_7;0.05" sets the delays from
iteration 340 on to 50 ms on links 2 and 6 and to 0 on all others, and "1.25;0_1,2_3;0.02,0.03" sets
those of two links 1.25 s after the start. This is the format of PipeMorph's artifact.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from slackline._toml import Table, duration_ps, integer, listed
from slackline.errors import UsageError
from slackline.plan import pipeline

__all__ = ["Change", "Drawn", "Trace", "drawn_of", "trace_of"]

_MS = pipeline.PS_PER_MS
_S = 1000 * _MS
Change = tuple[int, int]
"""A time in picoseconds, and the delay from then on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Delays of a link that change at random times, normal or uniform."""

    kind: str
    first_ps: int
    """The mean of normal delays, the least of uniform ones."""
    second_ps: int
    """The standard deviation of normal delays, the largest of uniform ones."""
    step_ps: int
    """Uniform delays are `first_ps` and a multiple of this."""
    lasts_ps: tuple[int, int]
    """The shortest and the longest time between two changes, drawn in whole milliseconds."""
    seed: int
    run: int = 0
    """The number of the run: each has its own delays."""

    @property
    def mean_ps(self) -> int:
        """The mean of the delays."""
        if self.kind == "normal":
            return self.first_ps
        return (self.first_ps + self.second_ps) // 2

    def changes(self, link: int, until_ps: int) -> list[Change]:
        """Draw a link's delays from 0 to at least `until_ps`; equal arguments draw equal delays."""
        seed = 1000 * self.seed + link
        random = Random(seed if not self.run else f"{seed}/{self.run}")
        shortest_ps, longest_ps = self.lasts_ps
        found, now_ps = [], 0
        while now_ps <= until_ps:
            found.append((now_ps, self._delay_ps(random)))
            choices = (longest_ps - shortest_ps) // _MS + 1
            now_ps += shortest_ps + _MS * random.randrange(choices)
        return found

    def _delay_ps(self, random: Random) -> int:
        if self.kind == "normal":
            return max(0, round(random.gauss(self.first_ps, self.second_ps)))
        choices = (self.second_ps - self.first_ps) // self.step_ps + 1
        return self.first_ps + self.step_ps * random.randrange(choices)


@dataclass(frozen=True, slots=True)
class Trace:
    """The changes of all links that a trace has recorded."""

    by_iteration: bool
    """Whether times are numbers of iterations; otherwise they are picoseconds."""
    lines: tuple[tuple[int, tuple[Change, ...]], ...]
    """(time, the delay of each slow link as (link, delay)) in order of time."""
    crash: int | None = None
    """The iteration at which a NIC fails."""

    @property
    def links(self) -> tuple[int, ...]:
        """The links that are slow at any time, in order."""
        return tuple(sorted({link for _, delays in self.lines for link, _ in delays}))

    def at(self, time: int) -> Mapping[int, int]:
        """Return the delay of each slow link at a time, or in an iteration."""
        place = bisect_right(self.lines, time, key=lambda line: line[0])
        return dict(self.lines[place - 1][1]) if place else {}

    def changes(self, link: int) -> list[Change]:
        """Return the changes of one link; without a change at 0 its delay is 0 until the first."""
        found = [(0, 0)]
        for time, delays in self.lines:
            found.append((time, dict(delays).get(link, 0)))
        return found


def drawn_of(table: Table, run: int) -> Drawn:
    """Return the drawn delays that a table describes."""
    given = [kind for kind in ("normal", "uniform") if kind in table]
    if len(given) != 1:
        shown = " and ".join(given) or "neither"
        raise table.wrong(UsageError(f"give either normal or uniform delays, not {shown}"))
    kind = given[0]
    first_ps, second_ps = table.take(kind, _two)
    step_ps = table.take("step", duration_ps, _MS) if kind == "uniform" else _MS
    lasts_ps = table.take("lasts", _two)
    seed = table.take("seed", integer, 0)
    table.end()
    if not step_ps:
        raise table.wrong(UsageError("step must be positive"))
    if kind == "uniform" and first_ps > second_ps:
        raise table.wrong(UsageError("uniform must have the smaller delay first"))
    if not _MS <= lasts_ps[0] <= lasts_ps[1]:
        message = "lasts must have two times of at least 1ms, the shorter one first"
        raise table.wrong(UsageError(message))
    return Drawn(
        kind=kind,
        first_ps=first_ps,
        second_ps=second_ps,
        step_ps=step_ps,
        lasts_ps=lasts_ps,
        seed=seed,
        run=run,
    )


def _two(value: Any) -> tuple[int, int]:
    """Return two times; a single one stands for both."""
    times = listed(duration_ps)(value)
    if len(times) > 2:
        raise UsageError(f"must be one or two times, not {len(times)}")
    return times[0], times[-1]


def trace_of(content: str, name: str) -> Trace:
    """Return a trace that the file `name` has; UsageError names the line that is wrong."""
    lines: list[tuple[int, tuple[Change, ...]]] = []
    crash = None
    kinds = set()
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            time, links, delays = line.split(";")
            kinds.add("." not in time)
            if delays.strip() == "inf":
                crash = int(time)
                continue
            lines.append((_time(time), _line_delays(links, delays)))
        except ValueError:
            raise UsageError(
                f'{name}, line {number}: must be "time;links;delays" as in "340;2_3,6_7;0.05", '
                f"not {line!r}"
            ) from None
    times = [time for time, _ in lines]
    if not lines or times != sorted(set(times)):
        raise UsageError(f"{name}: the times of a trace must rise, one line each")
    if len(kinds) > 1:
        raise UsageError(f"{name}: times are either iterations (340) or seconds (1.25), not both")
    return Trace(kinds.pop(), tuple(lines), crash)


def _time(shown: str) -> int:
    return round(float(shown) * _S) if "." in shown else int(shown)


def _line_delays(links: str, delays: str) -> tuple[Change, ...]:
    """Return the links of a line with their delays; one delay stands for all links."""
    numbers = [_link(each) for each in links.split(",")]
    values = [round(float(each) * _S) for each in delays.split(",")]
    if len(values) not in (1, len(numbers)) or min(values) < 0:
        raise ValueError
    return tuple(zip(numbers, values * (len(numbers) // len(values)), strict=True))


def _link(shown: str) -> int:
    first, second = (int(each) for each in shown.split("_"))
    if second != first + 1 or first < 0:
        raise ValueError
    return first

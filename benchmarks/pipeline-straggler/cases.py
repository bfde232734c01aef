"""The pipelines and networks that are measured, and the targets of the measurements."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from _harness.timed_pipeline import Shape

MS = 1_000_000
"""A millisecond in nanoseconds."""
DELAYS_MS = (10, 20, 30, 40, 50, 60)
MOST_MS = DELAYS_MS[-1]
REDRAW_MS = (50, 100)
"""The shortest and longest time in ms for which a redrawn delay lasts."""
REDRAWN_FOR_MS = 30_000
RATE = 10**9
"""The rate of each NIC in bits per second, in cases where the size of activations matters.

In other cases the rate is not limited.
"""


SMALL = Shape(stages=4, microbatches=12)
LARGE = Shape(stages=8, microbatches=24)


@dataclass(frozen=True, kw_only=True)
class Case:
    """The state of the network under a pipeline."""

    part: str
    shape: Shape
    where: str
    """The affected links in words, for example "last link"."""
    delays_ms: tuple[tuple[int, int], ...] = ()
    """The slow links: (link, delay of every packet in each direction, in ms)."""
    redrawn: tuple[int, ...] = ()
    """The links whose delay is drawn anew every 50-100 ms, from 0 to 60 ms."""
    seed: int = 0
    rate: int | None = None

    @property
    def delay_ms(self) -> int:
        """The longest of the lasting delays, in ms."""
        return max((delay for _, delay in self.delays_ms), default=0)

    @property
    def healthy(self) -> bool:
        return not self.delays_ms and not self.redrawn

    def steps(self, link: int) -> list[tuple[int, int]]:
        """Return (start, delay) of each drawn delay of a link, in ms from the start of the
        iteration.
        """
        random = Random(1000 * self.seed + link)
        found, now = [], 0
        while now < REDRAWN_FOR_MS:
            found.append((now, random.randrange(0, MOST_MS + 1, 10)))
            now += random.randint(*REDRAW_MS)
        return found

    def faults(self, begin_ms: int) -> list[str]:
        """Return the faults as text; redrawn delays begin `begin_ms` after the faults' start."""
        texts = [f"link {link}-{link + 1} delay {ms}ms" for link, ms in self.delays_ms]
        for link in self.redrawn:
            steps = self.steps(link)
            ends = [begin for begin, _ in steps[1:]]
            for (begin, ms), end in zip(steps, ends, strict=False):
                if ms:
                    texts.append(
                        f"link {link}-{link + 1} delay {ms}ms "
                        f"from {begin_ms + begin}ms for {end - begin}ms"
                    )
        return texts

    def __str__(self) -> str:
        return f"{self.shape}, {self.where}" + (f" {self.delay_ms} ms" if self.delays_ms else "")


def links(shape: Shape) -> list[tuple[str, int]]:
    """Return name and number of the last, the middle and the first link."""
    last = shape.stages - 2
    return [("last link", last), ("middle link", last // 2), ("first link", 0)]


def healthy(part: str, shape: Shape, rate: int | None = None) -> Case:
    return Case(part=part, shape=shape, where="healthy", rate=rate)


def slow_last(part: str, shape: Shape, ms: int = MOST_MS, rate: int | None = None) -> Case:
    last = shape.stages - 2
    return Case(part=part, shape=shape, where="last link", delays_ms=((last, ms),), rate=rate)


def slow_all(shape: Shape, ms: int) -> Case:
    every = tuple((link, ms) for link in range(shape.stages - 1))
    return Case(part="several", shape=shape, where="all links", delays_ms=every)


def links_part(shape: Shape) -> str:
    """Return the name, for `--part`, of the cases in which each link in turn is slow."""
    return f"links-{shape.stages}"


def _sweep(shape: Shape) -> list[Case]:
    part = links_part(shape)
    slow = [
        Case(part=part, shape=shape, where=where, delays_ms=((link, ms),))
        for where, link in links(shape)
        for ms in DELAYS_MS
    ]
    return [healthy(part, shape), *slow]


def _several() -> list[Case]:
    return [
        Case(part="several", shape=SMALL, where="links 0, 2", delays_ms=((0, 20), (2, 60))),
        slow_all(SMALL, 30),
        slow_all(SMALL, 60),
        Case(
            part="several",
            shape=LARGE,
            where="links 1, 3, 6",
            delays_ms=((1, 20), (3, 40), (6, 60)),
        ),
        slow_all(LARGE, 30),
    ]


def _redrawn() -> list[Case]:
    found = []
    for shape in (SMALL, LARGE):
        every = tuple(range(shape.stages - 1))
        found += [
            Case(part="redrawn", shape=shape, where="last link redrawn", redrawn=every[-1:]),
            Case(part="redrawn", shape=shape, where="all links redrawn", redrawn=every),
        ]
    return found


REAL = Shape(stages=4, microbatches=12, width=4096, batch=64)
"""The shape of the part "sizes", with activations of 1 MiB."""

CASES = (
    *_sweep(SMALL),
    *_sweep(LARGE),
    *_several(),
    *_redrawn(),
    healthy("sizes", REAL, RATE),
    slow_last("sizes", REAL, rate=RATE),
)
QUICK_CASES = (healthy(links_part(SMALL), SMALL), slow_last(links_part(SMALL), SMALL))
PARTS = (links_part(SMALL), links_part(LARGE), "several", "redrawn", "sizes", "trace")

OVER_HEALTHY = 1.20
"""The largest allowed ratio of iteration times of `auto`: 60 ms on the last link to no delay.

The pipeline has 8 stages, and `auto` is this project's own schedule.
"""
FASTER_THAN_1F1B = 2.5
"""The smallest allowed ratio of PyTorch's 1F1B to `auto`, in time of an iteration.

The pipeline has 4 stages and 60 ms of delay on the last link. Both schedules use the same backend.
"""
FASTER_THAN_GLOO = 5.0
"""The smallest allowed ratio of PyTorch's 1F1B over gloo to `auto`, in time of an iteration.

The pipeline has 4 stages and delays of 60 ms.
"""
OVER_FIXED = 1.01
"""The largest allowed ratio of `auto` to the fixed order, in iteration time without delays."""
OVER_SIMULATED = 1.05
"""The largest allowed ratio of the measured to the simulated time of an iteration."""
TRACE_1F1B, TRACE_ZB = 1.37, 1.41
"""The smallest allowed ratios of PyTorch's 1F1B and zero bubble to `auto`, in time of the trace."""

"""What is measured and what is asked of it: tables."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

MS = 1_000_000
"""In nanoseconds."""
DELAYS_MS = (10, 20, 30, 40, 50, 60)
MOST_MS = DELAYS_MS[-1]
REDRAW_MS = (50, 100)
"""How long a redrawn delay lasts."""
REDRAWN_FOR_MS = 30_000
RATE = 10**9
"""Of each NIC, where activations have a size that matters; elsewhere as much as the machine can."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A pipeline: one stage a host, each the same."""

    stages: int
    microbatches: int
    width: int = 256
    batch: int = 4
    """An activation is batch x width of float32: 4 KiB."""
    time_ms: int = 10
    """F = B = W."""

    @property
    def cap(self) -> int:
        """Activations that a stage may hold, where there is a cap."""
        return 2 * self.stages

    @property
    def message_bytes(self) -> int:
        return 4 * self.width * self.batch

    def __str__(self) -> str:
        return f"S={self.stages} N={self.microbatches}"


SMALL = Shape(stages=4, microbatches=12)
LARGE = Shape(stages=8, microbatches=24)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What the network does to a pipeline."""

    part: str
    shape: Shape
    where: str
    """For people: "last link"."""
    delays_ms: tuple[tuple[int, int], ...] = ()
    """(link, delay of every packet, each way)."""
    redrawn: tuple[int, ...] = ()
    """Links whose delay is drawn anew every 50-100 ms from 0 to 60 ms."""
    seed: int = 0
    rate: int | None = None

    @property
    def delay_ms(self) -> int:
        """The longest that lasts."""
        return max((delay for _, delay in self.delays_ms), default=0)

    @property
    def healthy(self) -> bool:
        return not self.delays_ms and not self.redrawn

    def steps(self, link: int) -> list[tuple[int, int]]:
        """(from when, delay) of a redrawn link in ms, from the beginning of the iteration."""
        random = Random(1000 * self.seed + link)
        found, now = [], 0
        while now < REDRAWN_FOR_MS:
            found.append((now, random.randrange(0, MOST_MS + 1, 10)))
            now += random.randint(*REDRAW_MS)
        return found

    def faults(self, begin_ms: int) -> list[str]:
        """In the grammar of faults; redrawn links begin `begin_ms` after the plan's start."""
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
    """First, middle and last."""
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
    """The part of one link's delay after the other."""
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
"""Activations of 1 MiB."""

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
"""auto with 60 ms on the last link over its own healthy time, S = 8, at most."""
FASTER_THAN_1F1B = 2.5
"""auto over PyTorch's 1F1B on the same backend, 60 ms on the last link, S = 4, at least."""
FASTER_THAN_GLOO = 5.0
"""auto over PyTorch's 1F1B on gloo, 60 ms, S = 4, at least."""
OVER_FIXED = 1.01
"""auto over the fixed order where nothing is slow, at most."""
OVER_SIMULATED = 1.05
"""Measured over simulated, at most."""
TRACE_1F1B, TRACE_ZB = 1.37, 1.41
"""The replayed trace: the others' time over ours, at least."""

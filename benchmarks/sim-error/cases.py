"""The network that is measured and simulated, and the cases on it; nothing here has side effects.

The calibration's all_reduces run on two hosts and are not judged. All judged cases run on four
hosts or more.
"""

from __future__ import annotations

from dataclasses import dataclass

RATE_BPS = 200 * 10**6
"""The rate of each NIC: low enough that the processors of two cores do not count."""
BURST_BYTES = 16 << 10
"""The size of the token bucket that limits each NIC of the lab."""
ITEM_BYTES = 4
HOSTS = 4
PLANS = ("ring", "mesh", "reduce-broadcast", "halving-doubling", "direct")
SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)
STAR_SIZES = (256 << 10, 1 << 20, 4 << 20)
CALIBRATION = "calibration"
COLLECTIVES, TRAINING, AGGREGATOR, PIPELINES, DELEGATED, NIC_CUT, NOT_FITTED = PARTS = (
    "collectives",
    "training",
    "aggregator",
    "pipelines",
    "delegated",
    "nic-cut",
    "not-fitted",
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """An all_reduce of one size by one plan, on a number of hosts with one rank each."""

    hosts: int
    plan: str
    nbytes: int

    def __str__(self) -> str:
        """Return a description: "ring, 4 hosts, 1024 KiB"."""
        return f"{self.plan}, {self.hosts} hosts, {self.nbytes / 1024:g} KiB"


SHORT = Cell(hosts=2, plan="ring", nbytes=256)
"""The cell from which the latency is found."""
LONG = Cell(hosts=2, plan="ring", nbytes=4 << 20)
"""The cell from which the rate is found."""
CELLS = tuple(Cell(hosts=HOSTS, plan=plan, nbytes=nbytes) for plan in PLANS for nbytes in SIZES)
QUICK_CELLS = tuple(
    Cell(hosts=HOSTS, plan=plan, nbytes=1 << 20) for plan in ("ring", "reduce-broadcast")
)
STAR_CELLS = tuple(Cell(hosts=HOSTS, plan="star", nbytes=nbytes) for nbytes in STAR_SIZES)


@dataclass(frozen=True, kw_only=True)
class TimedLayer:
    """A layer of a model whose computations are waits of a given length."""

    forward_ms: int
    backward_ms: int
    gradient_bytes: int


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model that is trained, the first layer first."""

    name: str
    layers: tuple[TimedLayer, ...]


def _model(name: str, sizes_kib: tuple[int, ...], forward_ms: int, backward_ms: int) -> Model:
    layers = tuple(
        TimedLayer(forward_ms=forward_ms, backward_ms=backward_ms, gradient_bytes=kib << 10)
        for kib in sizes_kib
    )
    return Model(name=name, layers=layers)


MODELS = (
    _model("even layers", (256,) * 12, 5, 10),
    _model("long gradients first", (1024, 512, 512, 256, 256, 256, 256), 10, 20),
    _model("long gradients last", (256, 256, 256, 256, 512, 512, 1024), 10, 20),
)
PCCO, DDP = "PCCO", "DDP"
METHODS = (PCCO, DDP)
BUCKET_BYTES = 1 << 20
"""The size of DDP's buckets, to which the layers of each model add up exactly."""
SKIPPED_STEPS = 3
"""The first steps of a life, which do not count: DDP forms its buckets in them."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """The numbers of measurements."""

    lives: int
    """The number of times that each case is measured with new processes and connections."""
    most_calls: int
    """The number of calls of an all_reduce in a life, if it is not long."""
    steps: int
    """The number of training steps in a life."""
    iterations: int
    """The number of iterations of a pipeline in a life."""
    cuts: int
    """The number of failures of a NIC, each of which has a life of its own."""

    def calls(self, cell: Cell) -> int:
        """Return the number of measured calls of a cell in each life."""
        return max(2, min(self.most_calls, (32 << 20) // cell.nbytes))


FULL = Effort(lives=2, most_calls=20, steps=12, iterations=3, cuts=4)
QUICK = Effort(lives=1, most_calls=5, steps=6, iterations=1, cuts=1)

"""The measured runs, and the changes that are predicted from them and measured."""

from __future__ import annotations

from dataclasses import dataclass

RATE_BPS = 200 * 10**6
"""The rate of each NIC of the first run: low enough that the processors of two cores do not
count."""
LAYERS = 8
WEIGHT_COUNT = 1 << 16
"""The float32 elements of a layer's weight: 256 KiB."""
FORWARD_S, BACKWARD_S = 0.003, 0.006
"""The time for which a layer sleeps in place of its computation."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A job in a lab."""

    hosts: int = 4
    nics: int = 1
    rate_bps: int = RATE_BPS
    plan: str = "ring"
    group_bytes: int = 0
    computing: float = 1.0
    """The factor by which the computation of a layer takes longer."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A change of the first run, as text for `slackline what-if` and as the job to measure."""

    change: str
    setup: Setup


BASE = Setup()
CASES = (
    Case(change="rate 100Mbit", setup=Setup(rate_bps=10**8)),
    Case(change="rate 150Mbit", setup=Setup(rate_bps=150 * 10**6)),
    Case(change="rate 300Mbit", setup=Setup(rate_bps=300 * 10**6)),
    Case(change="rate 400Mbit", setup=Setup(rate_bps=400 * 10**6)),
    Case(change="plan mesh", setup=Setup(plan="mesh")),
    Case(change="plan direct", setup=Setup(plan="direct")),
    Case(change="plan reduce-broadcast", setup=Setup(plan="reduce-broadcast")),
    Case(change="plan halving-doubling", setup=Setup(plan="halving-doubling")),
    Case(change="plan torus", setup=Setup(plan="torus")),
    Case(change="hosts 2", setup=Setup(hosts=2)),
    Case(change="hosts 3", setup=Setup(hosts=3)),
    Case(change="hosts 5", setup=Setup(hosts=5)),
    Case(change="hosts 6", setup=Setup(hosts=6)),
    Case(change="nics 2", setup=Setup(nics=2)),
    Case(change="bucket 512KiB", setup=Setup(group_bytes=512 << 10)),
    Case(change="bucket 2MiB", setup=Setup(group_bytes=2 << 20)),
    Case(change="compute x0.5", setup=Setup(computing=0.5)),
    Case(change="compute x2", setup=Setup(computing=2.0)),
    Case(change="rate 100Mbit; plan direct", setup=Setup(rate_bps=10**8, plan="direct")),
    Case(change="rate 300Mbit; hosts 3", setup=Setup(rate_bps=300 * 10**6, hosts=3)),
    Case(change="rate 100Mbit; nics 2", setup=Setup(rate_bps=10**8, nics=2)),
    Case(change="compute x0.5; bucket 1MiB", setup=Setup(computing=0.5, group_bytes=1 << 20)),
)
QUICK = ("rate 400Mbit", "plan direct")
"""The changes of a quick run."""

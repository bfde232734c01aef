"""The networks and contestants that are measured, and the shortest times that their ports allow.

No function here has side effects.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from _harness.ideal import goodput_bps

HOSTS = 4
RATE = 200_000_000
"""The rate of an even port in bits per second."""
SLOW_HOST = 1
SLACKLINE, RING, GLOO = "slackline", "ring", "gloo"
CONTESTANTS = (SLACKLINE, RING, GLOO)
MOST_OVER_BOUND = 1.05
"""The allowed ratio of slackline's time to the bound, relative to the same ratio for even ports."""
NBYTES, QUICK_NBYTES = 100_000_000, 12_500_000
LEARNING_BYTES = 150_000_000
"""The bytes that a contestant reduces before the clock starts, to learn the rates of the ports."""
QUICK_LEARNING_BYTES = 37_500_000


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network in which the port of one host is slow, all the time or from the middle on."""

    name: str
    slow: Fraction
    """The rate of the slow port, as a fraction of the rate of the other ports."""
    midway: bool = False
    """Whether the port becomes slow in the middle of the operation."""

    @property
    def fault(self) -> str:
        """The fault that makes the port slow, without its times."""
        return f"nic {SLOW_HOST}.0 rate {int(RATE * self.slow)}bit"


EVEN = Case(name="even", slow=Fraction(1))
CASES = (
    EVEN,
    Case(name="one port at 3/4", slow=Fraction(3, 4)),
    Case(name="one port at 1/2", slow=Fraction(1, 2)),
    Case(name="one port at 1/4", slow=Fraction(1, 4)),
    Case(name="one port at 1/2 from the middle on", slow=Fraction(1, 2), midway=True),
)
QUICK_CASES = (EVEN, CASES[2])


def bound_seconds(nbytes: int, slow: Fraction) -> float:
    """Return the shortest time of an all_reduce, with any shares of the ranks in a mesh.

    The bound is max(2 (n - 1) S / sum of the rates, S / the slowest rate); for even ports that is
    2 (n - 1) / n S over the rate, which no plan without an aggregator can beat.
    """
    second_bytes = goodput_bps(RATE) / 8
    together = Fraction(2 * (HOSTS - 1)) / (HOSTS - 1 + slow)
    return float(nbytes * max(together, 1 / slow)) / second_bytes


def case_seconds(case: Case, nbytes: int) -> float:
    """Return the shortest time of a case.

    If the port becomes slow midway, half of the bytes are counted at the bound for even ports, and
    half at the bound for the slow port.
    """
    if not case.midway:
        return bound_seconds(nbytes, case.slow)
    return (bound_seconds(nbytes, Fraction(1)) + bound_seconds(nbytes, case.slow)) / 2

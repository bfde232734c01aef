"""The state of network and ranks under a plan of faults, from one change to the next."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from random import Random

from slackline.faults import NOTHING, Effects, Plan, Scheduler
from slackline.sim._events import Clock
from slackline.sim._fabric import Fabric

__all__ = ["Conditions", "Lot", "Path"]

Path = tuple[int, int, int]
"""(source host, target host, number of the NIC on both)."""

_PS_PER_NS = 1000
_REORDER_NS = 10**6


@dataclass(frozen=True, slots=True)
class Lot:
    """The fate of some packets of one frame at the switch."""

    lost: int = 0
    """The number of packets that do not arrive."""
    doubled: int = 0
    """The number of packets that arrive twice."""
    late_ps: int = 0
    """The delay of all packets, which also delays the packets behind them."""
    overtaken_ps: int = 0
    """The delay of packets that later packets overtake."""
    rate_bps: int | None = None
    """The rate of the path, where a fault limits it."""


class Conditions:
    """The effects of faults that are active now; `changed` is called at every change."""

    def __init__(self, clock: Clock, fabric: Fabric, faults: Plan, ranks: int) -> None:
        """Check the faults against the fabric; raise UsageError for hosts that do not exist."""
        faults.of_network.check(len(fabric.hosts), fabric.nics)
        faults.of_ranks.check(ranks, fabric.nics)
        self._clock, self._fabric, self._faults = clock, fabric, faults
        self.faulty = bool(faults.of_network)
        """Whether the network has a fault at any time."""
        self.changed: list[Callable[[], None]] = []
        self._scheduler = Scheduler(faults)
        self._scheduler.start(0)
        self._network = self._scheduler.advance(self._now_ns()).network
        self._paths: dict[Path, Effects] = {}
        self._lots: dict[Path, Random] = {}

    def start(self) -> None:
        """Begin with the faults of time 0 and schedule the first change."""
        self._tell()

    def down(self, path: Path) -> bool:
        """Return whether no packet passes the path now: the path is down, or loses every packet."""
        if not self.faulty:
            return False
        effects = self._effects(path)
        return effects.down or 1.0 in (effects.loss, effects.corrupt)

    def rate_bps(self, host: int, nic: int) -> int:
        """Return the rate of a NIC, lowered by its faults."""
        rate_bps = self._fabric.hosts[host].rates_bps[nic]
        limit = self._network.nics.get((host, nic), NOTHING).rate_bps
        return rate_bps if limit is None else min(rate_bps, limit)

    def limited_ports(self) -> set[tuple[int, int]]:
        """Return the (host, NIC) of each port whose rate a fault lowers now."""
        return {
            port for port, effects in self._network.nics.items() if effects.rate_bps is not None
        }

    def state(self, path: Path) -> tuple[bool, bool, int]:
        """Return whether a path is down, whether it is free of faults, and its additional delay.

        The delay is in picoseconds, and is that of this direction.
        """
        effects = self._effects(path)
        return self.down(path), effects == NOTHING, effects.delay_ns * _PS_PER_NS

    def slowness(self, rank: int) -> tuple[Fraction, bool]:
        """Return the factor by which a rank is slower now, and whether it is stopped or dead."""
        state = self._faults.ranks(self._now_ns()).get(rank)
        if state is None:
            return Fraction(1), False
        return Fraction(state.factor), state.action != "slow"

    def dead(self, rank: int) -> bool:
        """Return whether the rank has been killed."""
        state = self._faults.ranks(self._now_ns()).get(rank)
        return state is not None and state.action == "kill"

    def draw(self, path: Path, packets: int) -> Lot:
        """Return the fate of `packets` packets that pass the path now."""
        effects = self._effects(path)
        if effects == NOTHING:
            return Lot()
        if path not in self._lots:
            self._lots[path] = Random(f"{self._fabric.seed} {effects.seed} {path}")
        random = self._lots[path]

        def hit(chance: float) -> int:
            return sum(random.random() < chance for _ in range(packets)) if chance else 0

        lost = hit(effects.loss + effects.corrupt - effects.loss * effects.corrupt)
        late_ns = max(_REORDER_NS, effects.jitter_ns) if hit(effects.reorder) else 0
        jitter_ns = random.randint(0, effects.jitter_ns) if effects.jitter_ns else 0
        pair = self._network.pairs.get(path[:2], NOTHING)
        return Lot(
            lost=lost,
            doubled=min(hit(effects.duplicate), packets - lost),
            late_ps=(effects.delay_ns + jitter_ns) * _PS_PER_NS,
            overtaken_ps=late_ns * _PS_PER_NS,
            rate_bps=pair.rate_bps,
        )

    def _effects(self, path: Path) -> Effects:
        found = self._paths.get(path)
        if found is None:
            source, target, nic = path
            found = self._paths[path] = self._network.on((source, nic), (target, nic))
        return found

    def _now_ns(self) -> int:
        return self._clock.now_ps // _PS_PER_NS

    def _tell(self) -> None:
        state = self._scheduler.advance(self._now_ns())
        self._network = state.network
        self._paths.clear()
        for call in self.changed:
            call()
        if state.next_ns is not None:
            self._clock.at(state.next_ns * _PS_PER_NS, self._tell)

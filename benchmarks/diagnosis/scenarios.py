"""Random faults from a fixed seed, and the names that a diagnosis must give them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from slackline.causes import Kind
from slackline.faults import Plan, parse_all
from slackline.testing.simulated_network import MS, US, S

RANKS = 4
SEED = 20261123
LAWS = ("quiet", "jitter", "noise", "bursts")
"""The distributions of the network's jitter; `simulated.py` has their parameters."""
KINDS = (*Kind, None)
"""The kinds of scenarios; None has no fault."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A simulated job with one fault or none."""

    number: int
    kind: Kind | None
    name: str = ""
    """The name of the cause; empty without a fault."""
    start_ns: int
    law: str
    ring: bool
    """Whether ranks exchange bytes in a ring only, or all with all."""
    rails: int = 1
    faults: str = ""
    """The faults of links and NICs, in the grammar of `slackline.faults`."""
    rank: int = 0
    """The rank of a fault that is not of the network."""
    factor: float = 1.0
    """The factor by which the rank computes longer."""
    pause_ns: int = 0
    """The time that the rank's loader adds to a step."""
    busy: bool = False
    """Whether other programs take cores of all hosts alike from the start of the fault, as on the
    one machine of a lab."""
    unplugged: bool = False
    """Whether a dead rank's host vanishes, so that its peers see no end of connections."""

    @property
    def plan(self) -> Plan:
        return parse_all([self.faults] if self.faults else [])

    @property
    def engine_plan(self) -> Plan:
        """The faults that engines see: all NICs of a host that vanishes are down."""
        if not self.unplugged:
            return self.plan
        start = f"from {self.start_ns // MS}ms"
        return parse_all([f"nic {self.rank}.{nic} down {start}" for nic in range(self.rails)])

    @property
    def words(self) -> str:
        """The fault in words, for rows of results."""
        if self.faults:
            return self.faults
        return f"{self.kind} {self.rank}" if self.kind else "busy cores" * self.busy or "none"


def draw(count: int) -> list[Scenario]:
    """Return `count` scenarios, with all kinds in turns; the same count gives the same list."""
    random = Random(SEED)
    return [_one(number, KINDS[number % len(KINDS)], random) for number in range(count)]


def _one(number: int, kind: Kind | None, random: Random) -> Scenario:
    base = Scenario(
        number=number,
        kind=kind,
        start_ns=random.randrange(11 * S, 15 * S),
        law=random.choice(LAWS),
        ring=random.random() < 0.5,
        rails=random.choice((1, 2)),
        rank=random.randrange(RANKS),
    )
    rank, start = base.rank, f"from {base.start_ns // MS}ms"
    match kind:
        case Kind.LINK:
            # In a ring only the next rank receives bytes; the delay of any direction is seen.
            source, target = rank, (rank + 1) % RANKS
            both = random.random() < 0.3
            effect = _effect(random, loss=not both)
            low, high = sorted((source, target))
            arrow, name = (">", f"link {source}>{target}")
            if both:
                arrow, name = "-", f"link {low}-{high}"
                effect = f"delay {random.randrange(5, 60)}ms"
            faults = f"link {source}{arrow}{target} {effect} {start}"
            return replace(base, faults=faults, name=name)
        case Kind.NIC:
            nic = random.randrange(base.rails)
            effect = _effect(random, loss=True)
            if base.rails > 1 and random.random() < 0.5:
                effect = random.choice(("down", f"flap {random.randrange(800, 3000)}ms"))
            faults = f"nic {rank}.{nic} {effect} {start}"
            return replace(base, faults=faults, name=f"NIC {nic} of host node{rank}")
        case Kind.SWITCH:
            effect = f"delay {random.randrange(5, 40)}ms"
            pairs = [(a, b) for a in range(RANKS) for b in range(a)]
            faults = "; ".join(f"link {a}-{b} {effect} {start}" for a, b in pairs)
            return replace(base, faults=faults, name="the switch")
        case Kind.HOST:
            return replace(base, name=f"host node{rank}", factor=random.uniform(1.5, 3.0))
        case Kind.RANK:
            return replace(base, name=f"rank {rank}", factor=random.uniform(1.3, 3.0))
        case Kind.LOADER:
            pause_ns = random.randrange(60 * MS, 300 * MS)
            return replace(base, name=f"the data loader of rank {rank}", pause_ns=pause_ns)
        case Kind.DEAD:
            return replace(base, name=f"rank {rank}", unplugged=random.random() < 0.5)
        case _:
            return replace(base, busy=number // len(KINDS) % 2 == 1)


def _effect(random: Random, *, loss: bool) -> str:
    """Return the effects of a slow path: a delay, a lower rate, or loss."""
    choices = [f"delay {random.randrange(5, 60)}ms", f"rate {random.randrange(100, 500)}Mbit"]
    choices += [f"loss {random.randrange(2, 10)}%"] if loss else []
    return random.choice(choices)


HEALTHY = Scenario(number=-1, kind=None, start_ns=0, law="quiet", ring=False)
"""A job without a fault, whose law and length the caller changes."""

JITTER_NS = {"quiet": 20 * US, "jitter": 200 * US, "noise": 2 * MS, "bursts": 50 * US}
"""The mean of each law's exponential jitter."""

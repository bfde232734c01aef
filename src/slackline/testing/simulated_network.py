"""A simulated network of ranks with invented clocks, links and pauses, and the counters that their
engines would report.

Time is simulated, and all random numbers come from one seed. Like the engine, each rank probes each
peer every 50 ms while operations are open and no probe is in flight. Like the monitor, each rank
takes samples every 250 ms.
"""

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from slackline.detect import Probe, RailSample

__all__ = [
    "MS",
    "PROBE_EVERY",
    "SAMPLE_EVERY",
    "US",
    "Clock",
    "Direction",
    "Jitter",
    "Network",
    "S",
    "between",
    "exponential",
    "healthy",
    "normal",
    "pareto",
]

US = 1_000
MS = 1_000_000
S = 1_000_000_000

PROBE_EVERY = 50 * MS
SAMPLE_EVERY = 250 * MS
SUSPECTED_AFTER = 500 * MS
"""The time after which the engine suspects a rail that is down, and samples say so."""

Jitter = Callable[[random.Random], float]
"""A random number of nanoseconds that a passage takes beyond the minimum."""


def exponential(mean_ns: float) -> Jitter:
    """Return a jitter with an exponential distribution."""
    return lambda rng: rng.expovariate(1 / mean_ns)


def normal(deviation_ns: float) -> Jitter:
    """Return the absolute value of normal noise."""
    return lambda rng: abs(rng.gauss(0, deviation_ns))


def pareto(scale_ns: float, shape: float = 1.2) -> Jitter:
    """Return a heavy-tailed jitter, whose variance is infinite."""
    return lambda rng: min(scale_ns * (rng.paretovariate(shape) - 1), 2e9)


@dataclass
class Clock:
    """A host's CLOCK_MONOTONIC with an offset and a drift."""

    offset_ns: int = 0
    drift: float = 0.0

    def read(self, time_ns: int) -> int:
        """Return the clock's reading at a true time."""
        return time_ns + self.offset_ns + round(time_ns * self.drift)


@dataclass
class Direction:
    """A direction of a link. Properties that change are functions of time."""

    least_ns: int = 100 * US
    jitter: Jitter = field(default_factory=lambda: exponential(20 * US))
    delay: Callable[[int], float] = lambda _: 0
    rate: Callable[[int], float] = lambda _: 117.5e6
    loss: Callable[[int], float] = lambda _: 0.0
    down: Callable[[int], bool] = lambda _: False
    burst_every_ns: int = 0
    burst_ns: int = 0


@dataclass
class Network:
    """A network of `ranks` hosts, all connected. `pauses[r]` lists the intervals in which rank r
    does nothing.
    """

    ranks: int
    seed: int
    clocks: Sequence[Clock]
    directions: dict[tuple[int, int], Direction]
    pauses: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    iteration_ns: int = 200 * MS
    compute_ns: int = 60 * MS
    bytes_an_iteration: int = 8_000_000
    kind: str = "tcp"
    """The kind of all rails."""
    several_on_their_way: bool = False
    """If true, probe every 50 ms even if the last probe has not come back."""
    rail: int = 0
    """The index of the rail; each rail of several is a network of its own."""
    ring: bool = False
    """If true, ranks have links to the next and the previous rank only, and send to the next."""

    def peers(self, rank: int) -> list[int]:
        """Return the ranks to which a rank has links."""
        if not self.ring:
            return [peer for peer in range(self.ranks) if peer != rank]
        return sorted({(rank - 1) % self.ranks, (rank + 1) % self.ranks} - {rank})

    def samples(self, rank: int, until_ns: int) -> Iterator[tuple[int, list[RailSample]]]:
        """Yield, every SAMPLE_EVERY, the time of the rank's own clock and a sample of each of its
        rails.
        """
        peers = self.peers(rank)
        ends = {peer: _End(self, rank, peer) for peer in peers}
        for time in range(SAMPLE_EVERY, until_ns + 1, SAMPLE_EVERY):
            yield self.clocks[rank].read(time), [ends[peer].until(time) for peer in peers]

    def running(self, rank: int, time_ns: int) -> int:
        """Return the first moment from `time_ns` on at which the rank runs."""
        pauses = self.pauses.get(rank)
        if not pauses:
            return time_ns
        at = bisect_right(pauses, (time_ns, 1 << 62)) - 1
        return max(time_ns, pauses[at][1]) if at >= 0 else time_ns

    def open(self, time_ns: int) -> bool:
        """Return whether operations are open; the result is false while all ranks compute."""
        return time_ns % self.iteration_ns >= self.compute_ns


class _End:
    """The state and counters of one rank's rail to a peer, as the rank's engine keeps them."""

    def __init__(self, network: Network, rank: int, peer: int) -> None:
        self._network = network
        self._ends = rank, peer
        self._rng = random.Random(f"{network.seed} {rank}>{peer}")
        self._next_ns = self._rng.randrange(PROBE_EVERY)
        self._arrived = {(rank, peer): 0, (peer, rank): 0}
        self._waiting: list[tuple[int, Probe]] = []
        self._bursts: dict[tuple[int, int], tuple[int, int]] = {}
        self._bytes = self._busy_ns = self._packets = self._resent = 0
        self._iteration = 0

    def until(self, time_ns: int) -> RailSample:
        """Return the sample of the rail at a true time, which must not fall."""
        network, (rank, peer) = self._network, self._ends
        while self._next_ns < time_ns:
            sent = network.running(rank, self._next_ns)
            self._next_ns = sent + PROBE_EVERY
            if network.open(sent) and not self._down(sent):
                back = self._probe(sent)
                if not network.several_on_their_way:
                    self._next_ns = max(self._next_ns, back)
        while (self._iteration + 1) * network.iteration_ns <= time_ns:
            self._iteration += 1
            self._transfer(self._iteration * network.iteration_ns - 1)
        here = [probe for back, probe in self._waiting if back <= time_ns]
        self._waiting = [(back, probe) for back, probe in self._waiting if back > time_ns]
        return RailSample(
            rank=rank,
            peer=peer,
            rail=network.rail,
            kind=network.kind,
            up=not (self._down(time_ns) and self._down(time_ns - SUSPECTED_AFTER)),
            name=f"{network.kind} {rank}>{peer}",
            frames_sent=self._bytes // 131_072,
            packets_sent=self._packets,
            packets_resent=self._resent,
            confirmed_bytes=self._bytes,
            busy_ns=self._busy_ns,
            probes=tuple(here),
        )

    def _down(self, time_ns: int) -> bool:
        """Return whether one of the two directions lets nothing through."""
        rank, peer = self._ends
        directions = self._network.directions
        return directions[rank, peer].down(time_ns) or directions[peer, rank].down(time_ns)

    def _probe(self, sent: int) -> int:
        """Return the time at which a probe sent now is back."""
        network, (rank, peer) = self._network, self._ends
        received = network.running(peer, self._pass(rank, peer, sent))
        answered = received + 5 * US
        back = network.running(rank, self._pass(peer, rank, answered))
        here, there = network.clocks[rank].read, network.clocks[peer].read
        self._waiting.append(
            (back, Probe(here(sent), there(received), there(answered), here(back)))
        )
        return back

    def _pass(self, source: int, target: int, time_ns: int) -> int:
        """Return the arrival time of data sent at `time_ns`; data never overtakes earlier data."""
        direction = self._network.directions[source, target]
        arrival = (
            time_ns
            + direction.least_ns
            + round(direction.jitter(self._rng))
            + round(direction.delay(time_ns))
        )
        if direction.burst_every_ns:
            arrival = max(arrival, self._burst(direction, source, target, time_ns))
        arrival = max(arrival, self._arrived[source, target])
        self._arrived[source, target] = arrival
        return arrival

    def _burst(self, direction: Direction, source: int, target: int, time_ns: int) -> int:
        """Return the time at which a random burst of foreign traffic has left the queue, or 0 if
        there is no burst at `time_ns`.
        """
        begin, end = self._bursts.get((source, target), (0, 0))
        while end <= time_ns:
            begin = end + round(self._rng.expovariate(1 / direction.burst_every_ns))
            end = begin + direction.burst_ns
            self._bursts[source, target] = begin, end
        return end if begin <= time_ns else 0

    def _transfer(self, time_ns: int) -> None:
        network, (rank, peer) = self._network, self._ends
        direction = network.directions[rank, peer]
        if self._down(time_ns) or (network.ring and peer != (rank + 1) % network.ranks):
            return
        size = network.bytes_an_iteration
        self._bytes += size
        self._busy_ns += round(size / direction.rate(time_ns) * 1e9 * self._rng.uniform(1.0, 1.06))
        packets = size // 1400
        self._packets += packets
        lost = direction.loss(time_ns)
        if lost:
            self._resent += sum(self._rng.random() < lost for _ in range(packets))


def healthy(ranks: int, seed: int, **direction: Any) -> Network:
    """Return a network with equal links, and with clocks that are hours apart and drift by up to 50
    ppm.
    """
    rng = random.Random(seed)
    clocks = [
        Clock(rng.randrange(100 * 3600 * S), rng.uniform(-50e-6, 50e-6)) for _ in range(ranks)
    ]
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    return Network(ranks, seed, clocks, {pair: Direction(**direction) for pair in pairs})


def between(
    begin_ns: int, end_ns: int, amount: float, otherwise: float = 0
) -> Callable[[int], float]:
    """Return a function of time that is `amount` from `begin_ns` until `end_ns`, else
    `otherwise`.
    """
    return lambda time_ns: amount if begin_ns <= time_ns < end_ns else otherwise

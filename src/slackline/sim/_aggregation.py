"""A model of an aggregation node that adds frames of all workers as they arrive.

    worker 0   [f0][f1][f2][f3]          each port buffers what has arrived
    worker 1      [f0]    [f1][f2][f3]
    sums             |[s0]  [s1][s2][s3]
                     onset threshold 1: the node begins when each port has one frame

Reduction begins when every port has as many frames as the onset threshold, or all frames of a
shorter message. From then on frame k is added when it has arrived at every port and the sum of
frame k - 1 has left. Sums leave at the rate of the wire, to all workers at once.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Literal, get_args

from slackline.errors import UsageError
from slackline.sim._fabric import transmission_ps

__all__ = ["Aggregation", "AggregationRun", "Pattern", "Senders", "simulate_aggregation"]

Pattern = Literal["uniform", "paced", "bursty"]
"""The times at which a worker's frames leave: without gaps, at equal intervals, or in bursts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Senders:
    """The pace of the workers."""

    pattern: Pattern = "uniform"
    rate_bps: int | None = None
    """The mean rate of a paced or bursty worker on the wire; None stands for the wire's rate."""
    burst: int = 1
    """The number of frames of a burst, which follow each other at the rate of the wire."""
    seed: int = 0
    """The seed of the phases: a paced or bursty worker begins within its first period."""

    def __post_init__(self) -> None:
        if self.pattern not in get_args(Pattern):
            known = ", ".join(get_args(Pattern))
            raise UsageError(f"pattern must be one of {known}, not {self.pattern!r}")
        if self.burst < 1:
            raise UsageError(f"burst must be a positive integer, not {self.burst}")
        if self.pattern == "uniform" and (self.rate_bps is not None or self.burst != 1):
            raise UsageError("uniform senders have neither a rate nor bursts")
        if self.pattern == "paced" and self.burst != 1:
            raise UsageError(f"paced senders have no bursts, not bursts of {self.burst}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """An aggregation node, its workers and the wires between them."""

    workers: int
    rate_bps: int
    """The rate of each wire, in each direction."""
    payload_bytes: int
    """The payload of a full frame."""
    overhead_bytes: int
    """The bytes of a frame on a wire besides its payload."""
    latency_ps: int = 0
    """The latency of each wire."""
    inside_ps: int = 0
    """The time from the arrival of a frame's end at all ports to the start of its sum."""
    senders: Senders = field(default_factory=Senders)

    def __post_init__(self) -> None:
        for name in ("workers", "rate_bps", "payload_bytes"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be a positive integer, not {getattr(self, name)}")
        for name in ("overhead_bytes", "latency_ps", "inside_ps"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must be at least 0, not {getattr(self, name)}")
        if (self.senders.rate_bps or self.rate_bps) > self.rate_bps:
            raise UsageError(
                f"senders must not be faster than their wires: {self.senders.rate_bps} bit/s are "
                f"more than {self.rate_bps}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregationRun:
    """The times of one message, in picoseconds from the moment at which workers may send."""

    first_ps: int
    """The arrival of the first byte of sums at the workers."""
    last_ps: int
    """The arrival of the last byte of sums at the workers."""
    starved_ps: int
    """The time for which the node waited for frames between its first sum and its last sum."""
    frames: int
    most_buffered: int
    """The largest number of frames that a port held at the start of an addition."""


def simulate_aggregation(node: Aggregation, nbytes: int, *, onset: int = 1) -> AggregationRun:
    """Simulate an all_reduce of `nbytes` through the node.

    `onset` is the number of frames that every port has before reduction begins; 0 stands for all
    frames of the message (store-and-forward). The result is deterministic. Raises UsageError for a
    message of no bytes and for a negative onset.
    """
    if nbytes < 1:
        raise UsageError(f"a message must have at least one byte, not {nbytes}")
    if onset < 0:
        raise UsageError(f"onset must be at least 0, not {onset}")
    full, rest = divmod(nbytes, node.payload_bytes)
    payloads = [node.payload_bytes] * full + [rest] * bool(rest)
    sizes = [transmission_ps(node.overhead_bytes + each, node.rate_bps) for each in payloads]
    random = Random(node.senders.seed)
    arrivals = [_arrivals(node, sizes, random) for _ in range(node.workers)]
    ready = [max(frame) + node.inside_ps for frame in zip(*arrivals, strict=True)]
    frames = len(sizes)
    first = begun = ready[min(onset or frames, frames) - 1]
    starved, most = 0, 0
    for k, size in enumerate(sizes):
        start = max(begun, ready[k])
        starved += start - begun
        arrived = start - node.inside_ps
        most = max(most, *(bisect_right(port, arrived) - k for port in arrivals))
        begun = start + size
    return AggregationRun(
        first_ps=first + node.latency_ps,
        last_ps=begun + node.latency_ps,
        starved_ps=starved,
        frames=frames,
        most_buffered=most,
    )


def _arrivals(node: Aggregation, sizes: list[int], random: Random) -> list[int]:
    """Return the times at which the ends of one worker's frames arrive at the node."""
    senders = node.senders
    if senders.pattern == "uniform":
        return [node.latency_ps + end for end in accumulate(sizes)]
    frame_bytes = node.overhead_bytes + node.payload_bytes
    period = transmission_ps(frame_bytes * senders.burst, senders.rate_bps or node.rate_bps)
    phase = random.randrange(period)
    found, end = [], 0
    for k, size in enumerate(sizes):
        burst, place = divmod(k, senders.burst)
        if not place:
            end = max(end, phase + burst * period)
        end += size
        found.append(node.latency_ps + end)
    return found

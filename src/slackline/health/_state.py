"""What is known about one direction of a rail: the input of every verdict."""

from dataclasses import dataclass

__all__ = ["Shift", "WayState"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shift:
    """Something that is not as usual: nanoseconds, bytes per second, or a part of the packets."""

    since_ns: int
    """When it changed."""
    usual: float
    """What is usual."""
    now: float
    """What it is now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WayState:
    """One direction of one rail, as one of its ends knows it. Times are of that end's clock."""

    source: int
    """The rank that sends."""
    target: int
    """The rank that receives."""
    rail: int = 0
    """Which of the link's rails."""
    name: str = ""
    """The rail as messages name it."""
    known: bool = True
    """Whether enough was seen to know what is usual."""
    usual_ns: int = 0
    """The usual one-way latency: half of the usual round trip."""
    latency: Shift | None = None
    """Set while the latency is above the usual."""
    bandwidth: Shift | None = None
    """Set while the bandwidth is below the usual; only the sender knows."""
    loss: Shift | None = None
    """Set while more packets are lost than usual; only the sender knows."""
    queueing: bool | None = None
    """Whether the sender's own queue has grown; None where only the other end knows."""
    silent_since_ns: int | None = None
    """Set while the peer does not answer on the rail."""
    cut_since_ns: int | None = None
    """Set when the rail has ended."""

"""The findings about one direction of a rail, from which verdicts (reports) are made."""

from dataclasses import dataclass

__all__ = ["DirectionState", "Shift"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shift:
    """A deviation of one measured quantity from its baseline.

    The unit depends on the quantity: nanoseconds for latency, bytes per second for bandwidth, and
    the lost fraction of the packets for loss.
    """

    since_ns: int
    """The time at which the quantity changed."""
    baseline: float
    """The baseline value."""
    now: float
    """The present value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DirectionState:
    """The health of one direction of a rail, as seen at one end. Times are by that end's clock."""

    source: int
    """The rank that sends."""
    target: int
    """The rank that receives."""
    rail: int = 0
    """The index of the rail within its link."""
    name: str = ""
    """The rail's name in messages."""
    known: bool = True
    """Whether the baseline latency has been learned."""
    baseline_ns: int = 0
    """The baseline one-way latency: half of the baseline round trip."""
    latency: Shift | None = None
    """The rise of the latency over its baseline; None without a rise."""
    bandwidth: Shift | None = None
    """The drop of the bandwidth below its baseline; None without a drop, and always at the
    receiver."""
    loss: Shift | None = None
    """The rise of the packet loss over its baseline; None without a rise, and always at the
    receiver."""
    queueing: bool | None = None
    """Whether the sender's send queue has grown; None at the receiver, where it is unknown."""
    silent_since_ns: int | None = None
    """The time at which the peer was found silent on this rail; None while the peer answers."""
    cut_since_ns: int | None = None
    """The time at which the ended rail was first missing; None while the rail exists."""
    why: str = ""
    """The engine's reason for which the rail is silent or has ended; empty if it gave none."""

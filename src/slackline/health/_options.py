"""How much counts as a change, and how sure a verdict has to be."""

from dataclasses import dataclass, fields

from slackline.errors import UsageError

__all__ = ["HealthOptions"]


@dataclass(frozen=True, kw_only=True)
class HealthOptions:
    """The defaults give a verdict on a delay after six probes: 0.3 s of traffic."""

    least_change: float = 0.10
    """Changes below this part of what is usual are jitter."""
    least_delay_ns: int = 1_000_000
    """Delays below this are jitter, however small the usual latency."""
    least_loss: float = 0.005
    """Losses below this part of the packets, beyond what is usual, are jitter."""
    noise_factor: float = 6.0
    """A change must be this many times the usual scatter (scaled median deviation)."""
    evidence: float = 3.0
    """How many clear readings in a row make a verdict at least; more where more are usual."""
    recovery_evidence: float = 8.0
    """How many clear readings in a row take a verdict back."""
    fastest_of: int = 4
    """A reading is the fastest of so many probes: a delay slows them all, jitter does not."""
    learn_probes: int = 64
    """Probes from which the usual latency is learned before anything is judged."""
    learn_intervals: int = 12
    """Intervals from which the usual bandwidth or loss is learned before it is judged."""
    bulk_bytes: int = 256 << 10
    """Bytes that an interval must carry to count as a reading of bandwidth."""
    bulk_frame_bytes: int = 16 << 10
    """Mean size of the frames of such an interval, at least."""
    bulk_round_trips: int = 20
    """How many usual round trips an interval must have been busy to count as such a reading."""
    bulk_packets: int = 500
    """Packets that an interval must have to count as a reading of loss."""
    queue_bytes: int = 64 << 10
    """From how much more than usual in its own queue a sender is said to be queueing."""
    idle_ns: int = 5_000_000_000
    """After such a pause between probes the clocks are compared anew."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value <= 0:
                raise UsageError(f"{field.name} must be positive, not {value}")
        for name in ("least_change", "least_loss"):
            if getattr(self, name) >= 1:
                raise UsageError(f"{name} must be below 1, not {getattr(self, name)}")

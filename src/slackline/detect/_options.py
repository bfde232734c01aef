"""Thresholds of the link health detectors: the size of a change, and the evidence for a verdict."""

from dataclasses import dataclass, fields

from slackline.errors import UsageError

__all__ = ["HealthOptions"]


@dataclass(frozen=True, kw_only=True)
class HealthOptions:
    """Thresholds of the link health detectors.

    A probe is a small frame to the peer and back, with four timestamps. The defaults report an
    added delay after six probes, which are 0.3 s of traffic. Raises UsageError for a value that is
    not positive, or a fraction that is not below 1.
    """

    least_change: float = 0.10
    """Changes below this fraction of the baseline count as jitter."""
    least_delay_ns: int = 1_000_000
    """Added delays below this count as jitter, however small the baseline latency is."""
    least_loss: float = 0.005
    """Increases of the packet loss by less than this fraction of all packets count as jitter."""
    least_udp_loss: float = 0.02
    """The same for UDP rails, which lose packets while they look for the rate of their path."""
    noise_factor: float = 6.0
    """A change must be this many times the baseline's noise (scaled median deviation)."""
    evidence: float = 3.0
    """The least number of consecutive readings, clearly above the threshold, that make a verdict (a
    report of a problem). If the rail often has such readings without a problem, more readings are
    needed.
    """
    recovery_evidence: float = 8.0
    """The number of consecutive readings, clearly back to normal, that withdraw a verdict."""
    fastest_of: int = 4
    """The number of probes of which the fastest gives one reading: jitter delays only some
    probes."""
    learn_probes: int = 64
    """The number of probes that the baseline latency is learned from before the first verdict."""
    learn_intervals: int = 12
    """The number of intervals that the baseline bandwidth or loss is learned from."""
    bulk_bytes: int = 256 << 10
    """The least number of bytes in an interval that counts as a reading of bandwidth."""
    bulk_frame_bytes: int = 16 << 10
    """The least mean frame size in an interval that counts as a reading of bandwidth."""
    bulk_round_trips: int = 20
    """The least busy time, in baseline round trips, of an interval that measures bandwidth."""
    bulk_packets: int = 500
    """The least number of packets in an interval that counts as a reading of loss."""
    queue_bytes: int = 64 << 10
    """The growth of a sender's own queue above its baseline that is reported as queueing."""
    idle_ns: int = 5_000_000_000
    """The pause between probes after which the clocks of both hosts are compared anew."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value <= 0:
                raise UsageError(f"{field.name} must be positive, not {value}")
        for name in ("least_change", "least_loss", "least_udp_loss"):
            if getattr(self, name) >= 1:
                raise UsageError(f"{name} must be below 1, not {getattr(self, name)}")

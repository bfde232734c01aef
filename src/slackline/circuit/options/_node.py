"""Parameters of an aggregation node."""

from dataclasses import dataclass

from slackline.circuit.options._beats import BeatSizes, check_lanes, check_power
from slackline.errors import UsageError

__all__ = ["NodeOptions"]


@dataclass(frozen=True, kw_only=True)
class NodeOptions(BeatSizes):
    """Parameters of an aggregation node."""

    ports: int = 4
    """Ranks around the node, 2 to 16; port k serves rank k."""
    lanes: int = 16
    """Words of 32 bits in a beat, and the number of adders for each port but the first."""
    slots: int = 4
    """Frames in a port's receive buffer, and sums kept for resending; a power of two from 2 to
    1024."""
    payload_bytes: int = 8192
    """Bytes of a frame's longest payload; a power of two, at least 64 bytes and two beats."""

    def __post_init__(self) -> None:
        check_lanes(self.lanes)
        if not 2 <= self.ports <= 16:
            raise UsageError(f"ports must be 2 to 16, not {self.ports}")
        check_power("slots", self.slots, 2, 1024)
        check_power("payload_bytes", self.payload_bytes, max(64, 8 * self.lanes), 65536)

"""Parameters of the circuits, which their twins (Python models) share."""

from dataclasses import dataclass

from slackline.errors import UsageError
from slackline.wire import HEADER_BYTES

__all__ = ["LANES", "Beats", "NodeOptions", "check_lanes", "check_power"]

LANES = (1, 2, 4, 8, 16)
"""Widths of a beat in words of 32 bits; a frame header fills whole beats of each width."""


def check_lanes(lanes: int) -> int:
    """Return `lanes` if a circuit can have that many lanes; raise UsageError otherwise."""
    if lanes not in LANES:
        known = ", ".join(map(str, LANES))
        raise UsageError(f"lanes must be one of {known}, not {lanes}")
    return lanes


def check_power(name: str, value: int, least: int, most: int) -> int:
    """Return `value` if it is a power of two from `least` to `most`; raise UsageError otherwise."""
    if not least <= value <= most or value & (value - 1):
        raise UsageError(f"{name} must be a power of two from {least} to {most}, not {value}")
    return value


class Beats:
    """A base class of options, which derives the sizes of frames in beats from two fields."""

    lanes: int
    payload_bytes: int

    @property
    def beat_bytes(self) -> int:
        """Bytes of data in a beat."""
        return 4 * self.lanes

    @property
    def header_beats(self) -> int:
        """Beats of a frame header."""
        return HEADER_BYTES // self.beat_bytes

    @property
    def slot_beats(self) -> int:
        """Beats of the longest payload."""
        return self.payload_bytes // self.beat_bytes


@dataclass(frozen=True, kw_only=True)
class NodeOptions(Beats):
    """Parameters of an aggregation node."""

    ports: int = 4
    """Ranks around the node, 2 to 16; port k serves rank k."""
    lanes: int = 16
    """Words of 32 bits in a beat, and the number of adders for each port but one."""
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

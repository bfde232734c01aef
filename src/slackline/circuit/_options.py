"""The parameters of the circuits, which their twins share."""

from dataclasses import dataclass

from slackline.errors import UsageError
from slackline.wire import HEADER_BYTES

__all__ = ["LANES", "Beats", "NodeOptions", "check_lanes", "check_power"]

LANES = (1, 2, 4, 8, 16)
"""Words of 32 bits in a beat; the header fills whole beats of each."""


def check_lanes(lanes: int) -> int:
    """`lanes` if a circuit can have that many; else UsageError."""
    if lanes not in LANES:
        known = ", ".join(map(str, LANES))
        raise UsageError(f"lanes must be one of {known}, not {lanes}")
    return lanes


def check_power(name: str, value: int, least: int, most: int) -> int:
    """`value` if it is a power of two from `least` to `most`; else UsageError."""
    if not least <= value <= most or value & (value - 1):
        raise UsageError(f"{name} must be a power of two from {least} to {most}, not {value}")
    return value


class Beats:
    """How frames are cut into beats: what options with these two fields have in common."""

    lanes: int
    payload_bytes: int

    @property
    def beat_bytes(self) -> int:
        """Bytes of data in a beat."""
        return 4 * self.lanes

    @property
    def header_beats(self) -> int:
        """Beats of a header."""
        return HEADER_BYTES // self.beat_bytes

    @property
    def slot_beats(self) -> int:
        """Beats of the longest payload."""
        return self.payload_bytes // self.beat_bytes


@dataclass(frozen=True, kw_only=True)
class NodeOptions(Beats):
    """How an aggregation node is built."""

    ports: int = 4
    """Ranks around the node, 2 to 16; port k is rank k's."""
    lanes: int = 16
    """Words of 32 bits in a beat, and adders for each port but one."""
    slots: int = 4
    """Frames in a port's Rx buffer, and sums that are kept; a power of two from 2 to 1024."""
    payload_bytes: int = 8192
    """The longest payload of a frame; a power of two, at least one beat."""

    def __post_init__(self) -> None:
        check_lanes(self.lanes)
        if not 2 <= self.ports <= 16:
            raise UsageError(f"ports must be 2 to 16, not {self.ports}")
        check_power("slots", self.slots, 2, 1024)
        check_power("payload_bytes", self.payload_bytes, max(64, 8 * self.lanes), 65536)

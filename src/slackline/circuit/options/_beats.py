"""Widths of a circuit's beats, and checks of its sizes."""

from slackline.errors import UsageError
from slackline.wire import HEADER_BYTES

__all__ = ["LANES", "BeatSizes", "check_lanes", "check_power"]

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


class BeatSizes:
    """A base class of options, which derives sizes from the fields `lanes` and `payload_bytes`."""

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

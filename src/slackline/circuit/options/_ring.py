"""Parameters of a ring NIC, and the sizes of the elements in its frames."""

from dataclasses import dataclass

from slackline.circuit.options._beats import BeatSizes, check_lanes, check_power
from slackline.errors import UsageError
from slackline.wire import DType, FrameFlag

__all__ = ["RingOptions", "sum_bytes"]


def sum_bytes(dtype: DType, flags: FrameFlag) -> int:
    """Return an element's bytes on the wire; partial sums of 16-bit types travel as fp32."""
    return max(4, dtype.itemsize) if flags & FrameFlag.PARTIAL else dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class RingOptions(BeatSizes):
    """Parameters of a ring NIC."""

    lanes: int = 16
    """Words of 32 bits in a beat, and the number of adders."""
    slots: int = 8
    """Frames in the receive buffer of each virtual channel (partial sums and final sums), and
    frames in its send buffer; a power of two from 2 to 64."""
    payload_bytes: int = 8192
    """Bytes of a frame's longest payload; a power of two from 128 on."""
    operations: int = 64
    """Operations that may be open at once; a power of two from 2 to 256."""
    ahead_beats: int = 0
    """Beats of host memory that may be requested or buffered before they are used; at least the
    beats of the longest frame. 0 stands for the beats of four such frames."""

    def __post_init__(self) -> None:
        check_lanes(self.lanes)
        check_power("slots", self.slots, 2, 64)
        check_power("payload_bytes", self.payload_bytes, 128, 65536)
        check_power("operations", self.operations, 2, 256)
        if self.ahead_beats != 0 and self.ahead_beats < self.slot_beats:
            raise UsageError(
                f"ahead_beats must be 0 or at least {self.slot_beats}, not {self.ahead_beats}"
            )

    @property
    def read_beats(self) -> int:
        """The value of `ahead_beats`, with its default in place of 0."""
        return self.ahead_beats or 4 * self.slot_beats

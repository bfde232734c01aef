"""The host's interface to a ring NIC: operations are posted, frames go in and come out."""

from collections.abc import Mapping
from typing import Protocol

from slackline.circuit.device._operation import RingOperation
from slackline.circuit.options import RingOptions

__all__ = ["RingDevice"]


class RingDevice(Protocol):
    """A NIC in a ring, used by one thread at a time.

    Each operation passes round the ring twice: once from rank `start` on, to be summed, and once
    more, to distribute the sum. With `start` 0 these two passes are the plan `reduce-broadcast`;
    the operations that `rotated` returns make up the plan `ring`.

    The memory of a posted operation belongs to the device until the operation is completed.
    """

    options: RingOptions

    def post(self, operation: RingOperation) -> None:
        """Open an operation; raise UsageError if it is not valid, or if too many are open."""

    def receive(self, frame: bytes) -> None:
        """Take a whole DATA frame from the predecessor; the sequence number does not matter.

        Frames of one operation may come in any order. A frame that is malformed, or that belongs to
        no open operation, is counted and dropped.
        """

    def advance(self) -> None:
        """Run until all work is done that needs no new input."""

    def frames(self) -> list[bytes]:
        """Return the DATA frames for the successor since the last call, numbered and in order."""

    def completed(self) -> list[tuple[int, int]]:
        """Return tag and chunk of the operations that were completed since the last call.

        An operation is completed when `target` has the whole sum and all frames of the operation
        have left.
        """

    def counters(self) -> Mapping[str, int]:
        """Return counts of the events since the device was opened, by name."""

    def close(self) -> None:
        """Free the device; a second call does nothing."""

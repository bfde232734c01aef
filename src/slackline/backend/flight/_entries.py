"""The record of one operation: its kind, sizes, place in the order of its group, and outcome."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from slackline.errors import ClosedError, SlacklineError
from slackline.nic import Transfer
from slackline.wire import DType

__all__ = ["Entry", "GroupRecord", "Sizes"]

Sizes = Sequence[Sequence[int]]
"""The shape of each buffer, as numbers of elements: [[1000]] for one buffer of 1000."""


@dataclass(slots=True, eq=False)
class GroupRecord:
    """A group of ranks, with the numbers of its recorded operations."""

    rank: int
    """The rank of this process in the group."""
    members: tuple[int, ...]
    """The rank in the job of each rank of the group."""
    name: str = ""
    """torch's name of the group; empty for a group without a torch process group."""
    description: str = "undefined"
    """torch's description of the group, with which the program has made the group."""
    collectives: int = 0
    """The number of collectives so far that are matched by the order of the calls."""
    tagged: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    """The number of operations so far by kind, peer (-1 for a collective) and tag."""


@dataclass(slots=True, eq=False)
class Entry:
    """An operation that this process has posted, or is about to post."""

    number: int
    """The number of the entry among all entries of the process, from 0."""
    group: GroupRecord
    kind: str
    """The name of the operation: "all_reduce", "send", "recv"."""
    peer: int
    """The other rank of a message, in the group; -1 for a collective and for any rank."""
    tag: int | None
    """The tag; None for a collective that is matched by the order of the calls."""
    sequence: int
    """The number of the operation, from 0, among those that are matched with each other by order:
    the collectives of the group without a tag, or the operations of one kind, peer and tag."""
    dtype: DType | None
    """The type of the elements; None for a barrier."""
    inputs: Sizes
    outputs: Sizes
    timeout_ms: int
    created_ns: int
    """Unix time at which the operation was posted."""
    stack: Any
    """torch's handle of the call stack; None once the operation has completed."""
    transfer: Transfer | None = None
    """The engine's handle; None while a blocking call runs, and after the end."""
    ended: bool = False
    """Whether the operation is known to have ended, with success or an error."""
    ended_ns: int = 0
    """The end by the monotonic clock in nanoseconds; 0 if it is not known."""
    failure: str = ""
    """The type and the text of the operation's error; empty without an error."""
    reported: bool = False
    """Whether the failure has led to a dump already, or needs none."""

    def posted(self, transfer: Transfer) -> None:
        """Record that the engine has taken the operation; `transfer` is its handle."""
        self.transfer = transfer

    def failed(self, error: SlacklineError) -> None:
        """Record that the operation has ended with `error`."""
        self.failure = f"{type(error).__name__}: {error}"
        # The end of a group fails its operations without harm to the job.
        self.reported = isinstance(error, ClosedError)
        self.ended, self.transfer = True, None

    def settle(self) -> None:
        """Record the outcome of an operation that has ended since its post. Never blocks."""
        transfer = self.transfer
        if transfer is None or not transfer.done():
            return
        try:
            transfer.wait()
        except SlacklineError as error:
            self.failed(error)
            return
        self.ended_ns = int(getattr(transfer, "ended_ns", 0))
        self.ended, self.transfer, self.stack = True, None, None

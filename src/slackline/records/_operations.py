"""The records of an engine's operations, many in one line of the file.

An engine's thread fills a ring of fixed size, and the engine turns the ring's content into rows of
JSON without the interpreter's lock. The rank's Python code handles a batch as one text.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

from slackline.plan.collective import Collective, name_of_number

__all__ = ["COLUMNS", "Operation", "Operations", "OperationsText", "kind_of", "plan_name_of"]

_SHARED_MEMORY = 31
"""The bit of the column `rails` that stands for shared memory."""


class Operation(NamedTuple):
    """An operation of an engine that has ended. Times are CLOCK_MONOTONIC of the rank's host.

    The fields are the columns of a row, in this order.
    """

    collective: int
    """The code of the collective in frame headers; 10 is a message between two ranks."""
    receives: int
    """1 for the receive of a message, else 0."""
    peer: int
    """The other rank of a message, in the group; -1 for a collective or an unanswered receive."""
    bytes: int
    """The bytes of the operation's whole buffer on one rank."""
    dtype: int
    """The code of the element type in frame headers."""
    group: int
    """The number (epoch) of the group, as in `GroupOpened.epoch`."""
    tag: int
    """The tag; -1 for a collective that is matched by the order of the calls."""
    sequence: int
    """The operation's number among the operations of the same group, tag and kind, from 0."""
    internal: int
    """0 for the caller's operations; another number for operations of the library itself."""
    plan: int
    """The number of the plan in frame headers; 0 for a message."""
    rails: int
    """The rails over which this rank sent frames: bit i is rail i, bit 31 shared memory."""
    posted_ns: int
    """The time at which the operation was posted."""
    started_ns: int
    """The time at which the engine began the operation; 0 if the operation failed before."""
    ended_ns: int
    """The time at which the operation ended on this rank."""
    waited_ns: int
    """The time for which a thread was blocked until the end, in a call that waits."""
    failed: int
    """1 if the operation failed, else 0."""

    @property
    def kind(self) -> str:
        """The operation's name: "all_reduce", "send", "recv"."""
        return kind_of(self.collective, receives=bool(self.receives))

    @property
    def plan_name(self) -> str:
        """The name of the plan, such as "ring"; empty for a message."""
        return plan_name_of(self.collective, self.plan)

    @property
    def rail_names(self) -> tuple[str, ...]:
        """The names of the rails in the column `rails`: ("0", "1") or ("shm",)."""
        return _names_of(self.rails)


COLUMNS = Operation._fields
"""The names of a row's columns."""


@dataclass(frozen=True, kw_only=True)
class Operations:
    """A batch of operations of one rank's engine, in the order in which they ended."""

    rank: int
    """The rank in the job."""
    lost: int
    """Operations before this batch that found the engine's ring full and have no record."""
    rows: tuple[Operation, ...]
    """The operations."""

    @property
    def ended_ns(self) -> int:
        """The time at which the latest operation ended, by the rank's monotonic clock; 0 without
        operations.
        """
        return self.rows[-1].ended_ns if self.rows else 0


@dataclass(frozen=True, kw_only=True)
class OperationsText:
    """A batch of operations as the engine gives it; readers of the file get `Operations`."""

    rank: int
    """The rank in the job."""
    lost: int
    """As in `Operations`."""
    rows: str
    """The rows as JSON text: arrays joined by commas, each with the values of `COLUMNS`."""


@cache
def kind_of(collective: int, *, receives: bool) -> str:
    """Return the name of an operation, such as "all_reduce" or "recv", from its code."""
    if collective == Collective.POINT_TO_POINT:
        return "recv" if receives else "send"
    return Collective(collective).label


@cache
def plan_name_of(collective: int, plan: int) -> str:
    """Return the name of the plan with this number; empty for a message."""
    if collective == Collective.POINT_TO_POINT or not plan:
        return ""
    return name_of_number(collective, plan)


@lru_cache
def _names_of(rails: int) -> tuple[str, ...]:
    """Return the names of the rails in a bit mask: ("0", "1") or ("shm",)."""
    wires = [str(bit) for bit in range(_SHARED_MEMORY) if rails >> bit & 1]
    return (*wires, "shm") if rails >> _SHARED_MEMORY & 1 else tuple(wires)

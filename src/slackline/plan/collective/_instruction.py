"""An instruction: a step of one rank on one chunk, and its text form of one word (token).

For example, "SEND_2C0" sends chunk 0 to rank 2.
"""

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from slackline.errors import UsageError

__all__ = ["NOBODY", "Instruction", "Kind"]

NOBODY = -1
"""The peer of an instruction that has no peer: -1."""


class Kind(IntEnum):
    """The operation of an instruction on "mine", the rank's current value of the chunk."""

    SEND = 0
    """Send the rank's value of the chunk: its own data, a partial or the final value."""
    ADD = 1
    """Receive a partial value and reduce it into the rank's own: mine = op(incoming, mine)."""
    COPY = 2
    """Receive the final value of the chunk and store it."""
    BUFFER = 3
    """Receive the peer's own contribution and buffer it for a later REDUCE_ALL."""
    REDUCE_ALL = 4
    """Reduce all buffered contributions and the rank's own in rank order; completes the chunk."""

    @property
    def receives(self) -> bool:
        """Whether the instruction waits for its peer."""
        return self in (Kind.ADD, Kind.COPY, Kind.BUFFER)


_TOKEN = re.compile(
    r"(?P<kind>[A-Z_]+)_(?P<peer>0|[1-9][0-9]*)?C(?P<chunk>0|[1-9][0-9]*)(?P<last>!)?"
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """A step of a plan: do `kind` with `peer` to `chunk`.

    A rank runs the instructions of one chunk in the order listed.
    """

    kind: Kind
    peer: int
    """The peer's rank; NOBODY in a REDUCE_ALL."""
    chunk: int
    last: bool = False
    """Whether this ADD completes the chunk: averages divide and half types are rounded here."""

    def __post_init__(self) -> None:
        if self.kind is Kind.REDUCE_ALL and self.peer != NOBODY:
            raise UsageError(f"a REDUCE_ALL has no peer: peer must be -1, not {self.peer}")
        if self.kind is not Kind.REDUCE_ALL and self.peer < 0:
            raise UsageError(f"peer must be a rank, not {self.peer}")
        if self.chunk < 0:
            raise UsageError(f"chunk must be at least 0, not {self.chunk}")
        if self.last and self.kind is not Kind.ADD:
            raise UsageError(f"only an ADD can be marked last, not a {self.kind.name}")

    def __str__(self) -> str:
        """Return the text form: "SEND_2C0", "REDUCE_ALL_C0"; "ADD_1C3!" where `last` is set."""
        peer = "" if self.peer == NOBODY else self.peer
        return f"{self.kind.name}_{peer}C{self.chunk}{'!' if self.last else ''}"

    @classmethod
    def parse(cls, token: str) -> Self:
        """Parse an instruction's text form; raise UsageError that quotes an invalid text."""
        match = _TOKEN.fullmatch(token)
        if match is None or match["kind"] not in Kind.__members__:
            kinds = ", ".join(Kind.__members__)
            raise UsageError(f'"{token}" is no instruction like "ADD_1C3!"; kinds are {kinds}')
        peer = NOBODY if match["peer"] is None else int(match["peer"])
        return cls(Kind[match["kind"]], peer, int(match["chunk"]), match["last"] is not None)

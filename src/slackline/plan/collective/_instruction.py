"""One thing that one rank does to one chunk, and its one-token text."""

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from slackline.errors import UsageError

__all__ = ["NOBODY", "Instruction", "Kind"]

NOBODY = -1
"""The peer of an instruction that has none."""


class Kind(IntEnum):
    """What an instruction does; "mine" is what the rank has of the chunk at that point."""

    SEND = 0
    """Send mine: the own data, a partial or the final value."""
    ADD = 1
    """Receive a partial and reduce: mine = op(incoming, mine)."""
    COPY = 2
    """Receive the final value and store it."""
    HOLD = 3
    """Receive the peer's own contribution and keep it beside mine."""
    FOLD = 4
    """Reduce all that is held, and mine, in rank order; mine is then complete."""

    @property
    def receives(self) -> bool:
        """Whether the instruction waits for its peer."""
        return self in (Kind.ADD, Kind.COPY, Kind.HOLD)


_TOKEN = re.compile(
    r"(?P<kind>[A-Z]+)_(?P<peer>0|[1-9][0-9]*)?C(?P<chunk>0|[1-9][0-9]*)(?P<last>!)?"
)


@dataclass(frozen=True, slots=True)
class Instruction:
    """Do `kind` with `peer` to `chunk`; instructions of one chunk run in listed order."""

    kind: Kind
    peer: int
    """A rank; NOBODY in a FOLD."""
    chunk: int
    last: bool = False
    """In an ADD: the chunk is then complete, so averages divide and half types round here."""

    def __post_init__(self) -> None:
        if self.kind is Kind.FOLD and self.peer != NOBODY:
            raise UsageError(f"a FOLD has no peer, not {self.peer}")
        if self.kind is not Kind.FOLD and self.peer < 0:
            raise UsageError(f"peer must be a rank, not {self.peer}")
        if self.chunk < 0:
            raise UsageError(f"chunk must not be negative, not {self.chunk}")
        if self.last and self.kind is not Kind.ADD:
            raise UsageError(f"only an ADD can be last, not a {self.kind.name}")

    def __str__(self) -> str:
        """The token: "SEND_2C0", "ADD_1C3!" where last, "FOLD_C0"."""
        peer = "" if self.peer == NOBODY else self.peer
        return f"{self.kind.name}_{peer}C{self.chunk}{'!' if self.last else ''}"

    @classmethod
    def parse(cls, token: str) -> Self:
        """The instruction of a token; raises UsageError that shows what is not one."""
        match = _TOKEN.fullmatch(token)
        if match is None or match["kind"] not in Kind.__members__:
            kinds = ", ".join(Kind.__members__)
            raise UsageError(f'"{token}" is no instruction like "ADD_1C3!"; kinds are {kinds}')
        peer = NOBODY if match["peer"] is None else int(match["peer"])
        return cls(Kind[match["kind"]], peer, int(match["chunk"]), match["last"] is not None)

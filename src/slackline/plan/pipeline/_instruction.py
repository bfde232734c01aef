"""One computation that one stage does for one microbatch, and its one-token text."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from slackline.errors import UsageError

__all__ = ["Instruction", "Kind"]


class Kind(StrEnum):
    """What is computed; the value is what stands in the token."""

    F = "F"
    """Forward; its output goes to the stage below."""
    B = "B"
    """Backward for the input; its gradient goes to the stage above."""
    W = "W"
    """Backward for the weights; nobody waits for it."""
    BW = "BW"
    """Full backward, in one piece: the gradient for the input is there when all of it is done."""

    @property
    def backward(self) -> bool:
        """Whether the stage above waits for it."""
        return self in (Kind.B, Kind.BW)


_TOKEN = re.compile(r"(?P<stage>0|[1-9][0-9]*)(?P<kind>F|BW|B|W)(?P<microbatch>0|[1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """Do `kind` of `stage` for `microbatch`."""

    stage: int
    kind: Kind
    microbatch: int

    def __post_init__(self) -> None:
        if self.stage < 0:
            raise UsageError(f"stage must not be negative, not {self.stage}")
        if self.microbatch < 0:
            raise UsageError(f"microbatch must not be negative, not {self.microbatch}")

    def __str__(self) -> str:
        """The token: "2F0", "0BW11"."""
        return f"{self.stage}{self.kind}{self.microbatch}"

    @property
    def in_stage(self) -> str:
        """The token without the stage: "F0"."""
        return f"{self.kind}{self.microbatch}"

    @classmethod
    def parse(cls, token: str) -> Self:
        """The instruction of a token; raises UsageError that shows what is not one."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            kinds = ", ".join(Kind)
            raise UsageError(f'"{token}" is no instruction like "2F0"; kinds are {kinds}')
        return cls(int(match["stage"]), Kind(match["kind"]), int(match["microbatch"]))

"""An instruction: one stage's computation for one microbatch, and its one-word text (token).

For example, "2F0" is the forward of microbatch 0 on stage 2.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from slackline.errors import UsageError

__all__ = ["Instruction", "Kind"]


class Kind(StrEnum):
    """The computation of an instruction; the value is the letter in the token."""

    F = "F"
    """Forward; its output goes to the next stage."""
    B = "B"
    """Backward for the input; its gradient goes to the previous stage."""
    W = "W"
    """Backward for the weights; no other stage waits for its result."""
    BW = "BW"
    """Full backward in one piece: the gradient for the input is ready only at the backward's
    end."""

    backward: bool
    """Whether the computation produces the gradient that the previous stage waits for."""

    def __init__(self, letters: str) -> None:
        self.backward = letters in ("B", "BW")


_TOKEN = re.compile(r"(?P<stage>0|[1-9][0-9]*)(?P<kind>F|BW|B|W)(?P<microbatch>0|[1-9][0-9]*)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """A step of a pipeline: compute `kind` of `stage` for `microbatch`."""

    stage: int
    kind: Kind
    microbatch: int

    def __post_init__(self) -> None:
        if self.stage < 0:
            raise UsageError(f"stage must be at least 0, not {self.stage}")
        if self.microbatch < 0:
            raise UsageError(f"microbatch must be at least 0, not {self.microbatch}")

    def __str__(self) -> str:
        """Return the text form: "2F0", "0BW11"."""
        return f"{self.stage}{self.kind}{self.microbatch}"

    @property
    def in_stage(self) -> str:
        """The text form without the stage: "F0"."""
        return f"{self.kind}{self.microbatch}"

    @classmethod
    def parse(cls, token: str) -> Self:
        """Parse an instruction's text form; raise UsageError that quotes an invalid text."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            kinds = ", ".join(Kind)
            raise UsageError(f'"{token}" is no instruction like "2F0"; kinds are {kinds}')
        return cls(int(match["stage"]), Kind(match["kind"]), int(match["microbatch"]))

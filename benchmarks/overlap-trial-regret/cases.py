"""The models that are measured, and the length of a recording."""

from __future__ import annotations

from dataclasses import dataclass

DIGITS, GPT, SMALL, WIDE = "digits", "gpt", "small", "wide"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model that is trained on some ranks of this host."""

    model: str
    ranks: int

    @property
    def name(self) -> str:
        return f"{self.model}, {self.ranks} ranks"


CASES = tuple(
    Case(model=model, ranks=ranks) for ranks in (2, 4) for model in (DIGITS, GPT, SMALL, WIDE)
)
QUICK_CASES = (Case(model=SMALL, ranks=2),)
ROUNDS, QUICK_ROUNDS = 60, 8
REPLAYS = 1000
WITHIN = 1.03
"""The step time of a good choice over that of the best choice, at most."""

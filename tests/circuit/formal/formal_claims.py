"""A claim about gateware, and about the same gateware broken in one place."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from formal_circuits import gateware
from formal_proving import Verdict, settle


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A circuit of one module's gateware, and how its claims are settled."""

    home: str
    make: Callable[[Any], Any]
    steps: int
    bounded: bool = False
    memories: str = ""
    """A pattern of names: these hold what was written, others anything; see `settle`."""
    slow: bool = False
    """It takes a minute or two."""
    right: str
    wrong: str
    """What a broken circuit has in its place."""

    def settled(self) -> Verdict:
        made = self.make(gateware(importlib.import_module(self.home)))
        return settle(made, steps=self.steps, bounded=self.bounded, memories=self.memories)

    def settled_if_broken(self) -> Verdict:
        made = self.make(gateware(importlib.import_module(self.home), self.right, self.wrong))
        return settle(made, steps=self.steps, bounded=True, memories=self.memories)

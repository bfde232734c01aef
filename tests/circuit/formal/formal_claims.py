"""Formal claims about gateware, each with a broken variant of the gateware that must refute it."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from formal_circuits import gateware
from formal_proving import Verdict, settle


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A circuit made from one module's gateware, and the method that settles its claims."""

    home: str
    make: Callable[[Any], Any]
    steps: int
    bounded: bool = False
    memories: str = ""
    """A pattern of names of memories that keep written data; reads of other memories give any
    value, see `settle`."""
    slow: bool = False
    """The proof takes a minute or two."""
    right: str
    wrong: str
    """The code that replaces `right` in a broken circuit."""

    def settled(self) -> Verdict:
        made = self.make(gateware(importlib.import_module(self.home)))
        return settle(made, steps=self.steps, bounded=self.bounded, memories=self.memories)

    def settled_if_broken(self) -> Verdict:
        made = self.make(gateware(importlib.import_module(self.home), self.right, self.wrong))
        return settle(made, steps=self.steps, bounded=True, memories=self.memories)

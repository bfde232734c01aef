"""Formal claims about gateware, each with a broken variant of the gateware that must refute it."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
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
    """Only `make test-full` settles the claim."""
    right: str
    wrong: str
    """The code that replaces `right` in a broken circuit."""

    def settled(self) -> Verdict:
        made = self.make(gateware(importlib.import_module(self.home)))
        return settle(made, steps=self.steps, bounded=self.bounded, memories=self.memories)

    def settled_if_broken(self) -> Verdict:
        made = self.make(gateware(importlib.import_module(self.home), self.right, self.wrong))
        return settle(made, steps=self.steps, bounded=True, memories=self.memories)


def named(claims: Mapping[str, Claim], quick: Iterable[str] | None = None) -> list[Any]:
    """Return the names of claims as parameters of tests, with marks for slow ones.

    If `quick` is given, all other claims are slow.
    """
    chosen = {name for name, each in claims.items() if not each.slow} if quick is None else {*quick}
    marks = [pytest.mark.slow, pytest.mark.timeout(1800)]
    return [pytest.param(name, marks=[] if name in chosen else marks) for name in claims]

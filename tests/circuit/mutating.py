"""Mutants of gateware: circuits that are wrong in one place."""

import importlib
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Mutant:
    """A change of one file of the gateware, with the check that must find the change."""

    module: str
    names: tuple[str, ...]
    users: tuple[str, ...]
    right: str
    wrong: str
    check: Callable[[], str]


def make(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the right circuit by the mutant for the length of a test."""
    changed = broken(mutant.module, mutant.right, mutant.wrong)
    for user in mutant.users:
        module = importlib.import_module(f"slackline.circuit.{user}")
        for each in mutant.names:
            monkeypatch.setattr(module, each, getattr(changed, each))


def broken(module: str, right: str, wrong: str) -> Any:
    """Return a copy of a gateware module with one change; the original stays as it is."""
    home: Any = importlib.import_module(f"slackline.circuit.{module}")
    source = inspect.getsource(home)
    assert source.count(right) == 1
    changed: Any = types.ModuleType(home.__name__)
    changed.__package__ = home.__package__
    exec(compile(source.replace(right, wrong), home.__file__, "exec"), vars(changed))
    return changed

"""Circuits that are wrong in one place."""

import importlib
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    module: str
    names: tuple[str, ...]
    users: tuple[str, ...]
    right: str
    wrong: str
    check: Callable[[], str]


def make(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the wrong circuit in the right one's place, for a test."""
    home: Any = importlib.import_module(f"slackline.circuit.{mutant.module}")
    source = inspect.getsource(home)
    assert source.count(mutant.right) == 1
    changed: Any = types.ModuleType(home.__name__)
    exec(compile(source.replace(mutant.right, mutant.wrong), home.__file__, "exec"), vars(changed))
    for user in mutant.users:
        module = importlib.import_module(f"slackline.circuit.{user}")
        for each in mutant.names:
            monkeypatch.setattr(module, each, getattr(changed, each))

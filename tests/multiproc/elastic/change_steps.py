"""The steps of a change of members at which a test acts in the process that makes the change.

The functions of slackline.elastic are wrapped in this process: a wrapper calls the real function,
and before or after it the function that acts.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from change_cases import DONE

from slackline.elastic import _change
from slackline.nic.connect import Network

__all__ = ["at_steps"]


@contextmanager
def at_steps(act: Callable[[str], None], hear: Callable[[str], None]) -> Iterator[None]:
    """Call `act` with the name of each step that a change of this process comes to.

    Calls `hear` with each answer of the store to the question for the decision.
    """
    change, prefixed = _change._Change, _change._Prefixed
    real_run, real_set, real_compare = change.run, prefixed.set, prefixed.compare_set
    real_connect = Network.connect

    def run(self: Any, *given: Any) -> Any:
        act("after it connected")
        return real_run(self, *given)

    def connect(self: Any, *given: Any, **named: Any) -> Any:
        act("while the group opens")
        return real_connect(self, *given, **named)

    def set_key(self: Any, key: str, value: str, /) -> None:
        if key.startswith("ready/"):
            act("after the group is open")
        real_set(self, key, value)
        if key.startswith("slackline/rank/"):
            act("after it told its list")
        elif key.startswith("ready/"):
            act("after it said ready")

    def compare_set(self: Any, key: str, expected: str, desired: str, /) -> bytes:
        if (key, desired) == ("decision", DONE):
            act("before it decides")
        decided = real_compare(self, key, expected, desired)
        if key == "decision":
            hear(decided.decode())
        if (key, desired) == ("decision", DONE):
            act("after the decision")
        return decided

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(change, "run", run)
        patch.setattr(Network, "connect", connect)
        patch.setattr(prefixed, "set", set_key)
        patch.setattr(prefixed, "compare_set", compare_set)
        yield

"""The steps of a change of members at which a test acts in the process that makes the change.

The functions of slackline.elastic are wrapped in the process that has the fault, and in no other: a
wrapper calls the fault and the real function.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from slackline.elastic import _change

__all__ = ["act_at_steps"]


@contextmanager
def act_at_steps(act: Callable[[str], None]) -> Iterator[None]:
    """Call `act` with the name of each step that a change of this process comes to."""
    change, prefixed = _change._Change, _change._Prefixed
    real_meet, real_set, real_compare = change._meet, prefixed.set, prefixed.compare_set
    real_open = _change.create.open_beside

    def meet(self: Any, opening: Any) -> None:
        act("after it connected")
        real_meet(self, opening)

    def set_key(self: Any, key: str, value: str, /) -> None:
        real_set(self, key, value)
        if self._prefix.endswith("/group"):
            act("while the group opens")
        elif key.startswith("member/"):
            act("after it told its list")
        elif key.startswith("ready/"):
            act("after it said ready")

    def open_beside(*args: Any, **kwargs: Any) -> Any:
        opened = real_open(*args, **kwargs)
        act("after the group is open")
        return opened

    def compare_set(self: Any, key: str, expected: str, desired: str, /) -> bytes:
        deciding = (key, desired) == ("decision", "done")
        if deciding:
            act("before it decides")
        decided = real_compare(self, key, expected, desired)
        if deciding:
            act("after the decision")
        return decided

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(change, "_meet", meet)
        patch.setattr(prefixed, "set", set_key)
        patch.setattr(prefixed, "compare_set", compare_set)
        patch.setattr(_change.create, "open_beside", open_beside)
        yield

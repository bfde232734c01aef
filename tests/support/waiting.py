"""A wait for a condition that another process or thread brings about and that nothing announces."""

import time
from collections.abc import Callable

__all__ = ["PATIENCE_S", "until"]

PATIENCE_S = 60
"""The time after which a wait fails: far more than any condition takes on a busy machine."""

_PAUSE_S = 0.01


def until(condition: Callable[[], bool], missing: str | Callable[[], str]) -> None:
    """Return once `condition` holds; fail after 60 s with the text `missing`, or its result."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(missing if isinstance(missing, str) else missing())
        time.sleep(_PAUSE_S)

"""The interpreter's search for garbage in a process that watches a job."""

import gc

__all__ = ["search_seldom"]

_CREATED, _YOUNG, _MIDDLE = 50_000, 20, 20


def search_seldom() -> None:
    """Let the interpreter look for cycles of objects less often.

    A watched job adds thousands of records a second, none of which is part of a cycle; looking
    through them takes a fifth of a watching process's time.
    """
    gc.set_threshold(_CREATED, _YOUNG, _MIDDLE)

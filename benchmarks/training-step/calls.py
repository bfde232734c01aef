"""A counter of the Python functions that a training step calls."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Hashable
from types import FrameType
from typing import Any, TypeVar

Label = TypeVar("Label", bound=Hashable)


def python_calls(act: Callable[[], object]) -> int:
    """Return the number of calls of functions written in Python by this thread in `act`."""
    return labelled_calls(act, lambda file: "call").total()


def labelled_calls(act: Callable[[], object], label: Callable[[str], Label]) -> Counter[Label]:
    """Return the number of calls of Python functions by this thread in `act`, by label.

    `label` returns the label of a function, given the path of its file.
    """
    files: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            files[frame.f_code.co_filename] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(before)
    found: Counter[Label] = Counter()
    for file, calls in files.items():
        found[label(file)] += calls
    return found

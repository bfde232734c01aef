"""The order in which contestants take turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def in_turns(contestants: Sequence[T], number: int) -> list[T]:
    """Return the contestants in the order of round `number`: reversed in every other round."""
    return list(contestants) if number % 2 == 0 else list(reversed(contestants))

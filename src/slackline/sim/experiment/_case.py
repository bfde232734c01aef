"""A case of an experiment: a simulation with a name, and its figures."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slackline._toml import Table, listed
from slackline.errors import UsageError

__all__ = ["Case", "Figures", "each_value"]

Figures = dict[str, Any]
"""Results by name: times in picoseconds (`_ps`), sizes in bytes (`_bytes`), and counts."""


@dataclass(frozen=True, slots=True)
class Case:
    """A simulation of an experiment."""

    name: str
    """The plan, policy or runtime of the case, and its network where the file has several."""
    simulate: Callable[[], Figures]
    """Run the simulation; raise what `simulate_collective` raises."""


def each_value(table: Table, key: str, count: int, read: Callable[[Any], int]) -> tuple[int, ...]:
    """Return the values of a key, one for each stage or link; a single value stands for all."""
    values = table.take(key, listed(read))
    if len(values) not in (1, count):
        message = f"{key} must have one value or {count}, not {len(values)}"
        raise table.wrong(UsageError(message))
    return tuple(values) * (count // len(values))

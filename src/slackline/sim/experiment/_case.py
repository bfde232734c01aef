"""A case of an experiment: a simulation with a name, and its figures."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import Any

from slackline._toml import Table, listed
from slackline.errors import UsageError

__all__ = ["Case", "Figures", "Setting", "each_value"]

Figures = dict[str, Any]
"""Results by name: times in picoseconds (`_ps`), sizes in bytes (`_bytes`), and counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The circumstances in which an experiment's file is read."""

    run: int = 0
    """The number of the run: each run has its own random numbers, and run 0 those of the seeds."""
    folder: Traversable | None = None
    """The folder of the files that the experiment names; None where there is none."""

    def text_of(self, name: str) -> str:
        """Return the text of a file beside the experiment's; raise UsageError if it has none."""
        if self.folder is None:
            raise UsageError(f"there is no folder with {name}: the experiment is no file")
        try:
            return (self.folder / name).read_text()
        except OSError as error:
            raise UsageError(f"cannot read {name}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UsageError(f"cannot read {name}: it is not UTF-8") from None


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

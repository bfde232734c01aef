"""The result of one check."""

from dataclasses import asdict, dataclass
from enum import StrEnum

__all__ = ["Finding", "Level"]


class Level(StrEnum):
    """How a finding is meant; only MEND changes the exit code."""

    WELL = "well"
    NOTE = "note"
    MEND = "mend"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check found. `advice` and `command` are empty where all is well."""

    name: str
    """What was looked at."""
    value: str
    """What it is."""
    level: Level = Level.WELL
    advice: str = ""
    """One sentence: what is wrong, and what mends it."""
    command: str = ""
    """The command to run, where there is one."""

    def as_json(self) -> dict[str, str]:
        """The fields by name."""
        return {name: str(value) for name, value in asdict(self).items()}

"""The result of one check."""

from dataclasses import asdict, dataclass
from enum import StrEnum

__all__ = ["Finding", "Level"]


class Level(StrEnum):
    """The severity of a finding: WELL, NOTE (may be ignored) or MEND (must be fixed).

    Only MEND changes the exit code of `slackline doctor`.
    """

    WELL = "well"
    NOTE = "note"
    MEND = "mend"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check; `advice` and `command` are empty if the level is WELL."""

    name: str
    """The name of the thing that was checked, for example "cores"."""
    value: str
    """The observed state, for example "8 for 4 ranks"."""
    level: Level = Level.WELL
    advice: str = ""
    """A sentence that names the problem and its remedy."""
    command: str = ""
    """The shell command that applies the advice; empty if no command does."""

    def as_json(self) -> dict[str, str]:
        """Return the fields by name, each as a string."""
        return {name: str(value) for name, value in asdict(self).items()}

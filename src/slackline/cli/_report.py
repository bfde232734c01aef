"""What a job's telemetry says: one line while it runs, and a table per rank at the end."""

from pathlib import Path

from rich.table import Table

__all__ = ["Report"]


class Report:
    """Reads the telemetry that a job's ranks write into `directory`, as it grows."""

    def __init__(self, directory: Path, *, ranks: int) -> None:
        self._directory = directory
        self._ranks = ranks

    def update(self) -> None:
        """Reads what was added."""

    def progress(self) -> str:
        """What the job is doing, in one line."""
        return f"{self._ranks} ranks running"

    def table(self) -> Table | None:
        """A row per rank; None where no rank wrote telemetry."""
        return None

"""The start time of a process, which identifies the process together with its id."""

from pathlib import Path

__all__ = ["started"]


def started(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; None if it is not running.

    Process id and start time together name one process uniquely until the next boot.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])

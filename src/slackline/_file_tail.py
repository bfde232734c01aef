"""A file that another process is still writing, read piece by piece."""

from pathlib import Path

__all__ = ["FileTail"]


class FileTail:
    """A reader of a file that another process is still writing; a missing file counts as empty."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self, most: int = -1) -> bytes:
        """Return the bytes added since the last call, at most the first `most` of them if given."""
        try:
            if self._path.stat().st_size <= self._offset:
                return b""  # A reader of many files asks often, and most have nothing new.
            with self._path.open("rb") as file:
                file.seek(self._offset)
                added = file.read(most)
        except FileNotFoundError:
            return b""
        self._offset += len(added)
        return added

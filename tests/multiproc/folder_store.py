"""A rendezvous store in a folder, for ranks of hosts that share nothing but files."""

import time
from datetime import timedelta
from pathlib import Path

from slackline.errors import TimeoutError


class FolderStore:
    """A store for ranks that share only files. Each value is a file that appears complete."""

    def __init__(self, folder: Path, timeout: timedelta) -> None:
        self._folder, self._timeout = folder, timeout

    def set(self, key: str, value: str, /) -> None:
        path = self._path(key)
        part = path.with_name(path.name + ".part")
        part.write_text(value)
        part.rename(path)

    def get(self, key: str, /) -> bytes:
        path = self._path(key)
        deadline = time.monotonic() + self._timeout.total_seconds()
        while not path.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the store Timed out waiting for {key!r}")
            time.sleep(0.005)
        return path.read_bytes()

    def check(self, keys: list[str], /) -> bool:
        return all(self._path(key).exists() for key in keys)

    def _path(self, key: str) -> Path:
        return self._folder / key.replace("/", "-")

"""The files of saved steps: each has its step in its name, and is there whole or not at all."""

import os
import re
from pathlib import Path

__all__ = ["saved_steps", "write_step"]

_NAME = re.compile(r"step-(\d{12})\.pt")
_KEPT = 2
"""The latest, and the one before for who is just reading it."""


def saved_steps(folder: Path) -> dict[int, Path]:
    """The files in `folder` by their step; none where there is no folder."""
    if not folder.is_dir():
        return {}
    names = ((path, _NAME.fullmatch(path.name)) for path in folder.iterdir())
    return {int(match[1]): path for path, match in names if match is not None}


def write_step(folder: Path, step: int, data: bytes) -> Path:
    """Write a step's file and remove old ones. Several ranks may do so at once."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:012}.pt"
    part = folder / f"{path.name}.{os.getpid()}.part"
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    entry = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(entry)  # the new name
    finally:
        os.close(entry)
    files = saved_steps(folder)
    for old in sorted(files)[:-_KEPT]:
        files[old].unlink(missing_ok=True)
    return path

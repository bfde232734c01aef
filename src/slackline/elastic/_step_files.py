"""The files of saved training steps, written atomically and named by the step's number."""

import os
import re
from pathlib import Path

__all__ = ["saved_steps", "write_step"]

_NAME = re.compile(r"step-(\d{12})\.pt")
_KEPT = 2
"""The number of files to keep: the latest, and the previous, which another rank may be reading."""


def saved_steps(folder: Path) -> dict[int, Path]:
    """Return the files of saved steps in `folder`, by step; empty if there is no folder."""
    if not folder.is_dir():
        return {}
    names = ((path, _NAME.fullmatch(path.name)) for path in folder.iterdir())
    return {int(match[1]): path for path, match in names if match is not None}


def write_step(folder: Path, step: int, data: bytes) -> Path:
    """Write a step's file, sync it to disk, and remove old files; return the new path.

    Several ranks may call this function for the same folder at once.
    """
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
        os.fsync(entry)  # makes the renaming durable
    finally:
        os.close(entry)
    files = saved_steps(folder)
    for old in sorted(files)[:-_KEPT]:
        files[old].unlink(missing_ok=True)
    return path

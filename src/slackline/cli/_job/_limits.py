"""The processors and the memory that a job may use here, by the kernel's control groups.

A container or a scheduler limits its processes by control groups, version 1 or 2. The limits of all
groups that enclose this process hold, so the lowest one counts. The processors that a process may
run on (its affinity) are a limit of their own.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

__all__ = ["Limits", "group_limits", "usable_cores"]

_UNLIMITED = 1 << 60
"""Version 1 states the largest number of pages where it has no limit of memory."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of the control groups of a process; None without a limit."""

    processors: float | None = None
    """The processor time a second, in processors: 1.5 is one and a half processors."""
    memory_bytes: int | None = None


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use, at least 1.

    The number is that of its affinity, or the whole processors of its control groups' quota if that
    is less. `root` is the root of the files.
    """
    affine = os.cpu_count() or 1
    if sys.platform == "linux":
        affine = len(os.sched_getaffinity(0))
    quota = group_limits(root).processors
    return affine if quota is None else max(1, min(affine, int(quota)))


def group_limits(root: Path = Path("/")) -> Limits:
    """Return the limits of this process's control groups; files that cannot be read set none.

    `root` is the root of the files, such as proc/self/cgroup.
    """
    processors: list[float] = []
    memory: list[int] = []
    for folder in _folders(root):
        quota, period = folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us"
        words = _words(folder / "cpu.max") or _words(quota) + _words(period)
        if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
            processors.append(int(words[0]) / int(words[1]))
        for name in ("memory.max", "memory.limit_in_bytes"):
            memory += [int(w) for w in _words(folder / name) if w.isdecimal()]
    memory = [each for each in memory if each < _UNLIMITED]
    return Limits(processors=min(processors, default=None), memory_bytes=min(memory, default=None))


def _folders(root: Path) -> Iterator[Path]:
    """Yield the folders of the process's control groups, each with all that enclose it."""
    paths: dict[str, str] = {}  # by controller; the one of version 2 is ""
    for line in _text(root / "proc/self/cgroup").splitlines():
        if len(parts := line.split(":", 2)) == 3:
            paths |= dict.fromkeys(parts[1].split(","), parts[2])
    for line in _text(root / "proc/self/mountinfo").splitlines():
        mount, _, rest = line.partition(" - ")
        if len(places := mount.split(" ")) < 5 or len(words := rest.split(" ")) < 3:
            continue
        above, point = places[3:5]
        kind, _, options = words[:3]
        if kind == "cgroup2":
            own = paths.get("")
        elif kind == "cgroup":
            own = next((paths[c] for c in options.split(",") if c in paths and c), None)
        else:
            continue
        if own is None:
            continue
        top = root / point.lstrip("/")
        inside = PurePosixPath(own)
        # In a container the path may lie outside of what is mounted: then the mount is the group.
        below: tuple[str, ...] = ()
        if inside.is_relative_to(above) and ".." not in inside.parts:
            below = inside.relative_to(above).parts
        for count in range(len(below), -1, -1):
            yield top.joinpath(*below[:count])


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    """Return a file's text; empty if it cannot be read."""
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text()
    return ""

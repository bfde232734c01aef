"""The machine's side of a lab: running the tools, and what must be there for it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from slackline.errors import UsageError
from slackline.lab._commands import Batch

__all__ = ["NAMESPACES", "SETTINGS", "execute", "namespace_pids", "require", "started"]

NAMESPACES = Path("/run/netns")
"""Where `ip netns` keeps its names."""

SETTINGS = Path("/etc/netns")
"""Where `ip netns exec` finds the files that a namespace has in place of those in /etc."""

_TOOLS = ("ip", "bridge", "tc")
_PATIENCE_S = 30


def require() -> None:
    """Raises UsageError that names what is missing: Linux, root, or a tool of iproute2."""
    if sys.platform != "linux":
        raise UsageError(f"a lab needs Linux, not {sys.platform}")
    if os.geteuid() != 0:
        raise UsageError("a lab needs root: it makes network namespaces")
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            raise UsageError(f"a lab needs the command {tool!r}, of the package iproute2")


def execute(batches: Iterable[Batch]) -> None:
    """Run batches in order; raises UsageError with the tool's own words at the first failure."""
    for batch in batches:
        where = [] if batch.namespace is None else ["-n", batch.namespace]
        done = subprocess.run(
            [batch.tool, *where, "-batch", "-"],
            input="\n".join(batch.lines) + "\n",
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
        )
        if done.returncode:
            said = " ".join(done.stderr.split()) or f"code {done.returncode}"
            lines = "; ".join(batch.lines)
            raise UsageError(
                f"the lab cannot be built here: {' '.join([batch.tool, *where])} said {said!r} "
                f"to {lines}"
            )


def namespace_pids(name: str) -> list[int]:
    """The processes in a namespace; empty when there is no such namespace."""
    try:
        wanted = (NAMESPACES / name).stat()
    except FileNotFoundError:
        return []
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            seen = (entry / "ns" / "net").stat()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has ended meanwhile
        if (seen.st_ino, seen.st_dev) == (wanted.st_ino, wanted.st_dev):
            found.append(int(entry.name))
    return found


def started(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot; None when there is none.

    With the process id it names one process for as long as the machine runs.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])

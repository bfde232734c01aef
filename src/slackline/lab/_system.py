"""The operating system as a lab uses it: iproute2's tools, namespaces and processes."""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from slackline.errors import UsageError
from slackline.lab._commands import Batch, add_namespaces, delete_namespace

__all__ = [
    "NAMESPACES",
    "SETTINGS",
    "execute",
    "lacking_capabilities",
    "namespace_pids",
    "require",
    "trial",
]

NAMESPACES = Path("/run/netns")
"""The directory of the network namespaces that `ip netns` knows."""

SETTINGS = Path("/etc/netns")
"""The directory of files that `ip netns exec` shows in a namespace in place of the files in
/etc.
"""

_TOOLS = ("ip", "bridge", "tc")
_PATIENCE_S = 30
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
"""The capabilities that a lab needs, with their numbers (linux/capability.h)."""
_STATUS = Path("/proc/self/status")


def lacking_capabilities() -> list[str]:
    """Return the names of the capabilities that a lab needs and this process does not have."""
    lines = (line.partition(":") for line in _STATUS.read_text().splitlines())
    held = next(int(value, 16) for name, _, value in lines if name == "CapEff")
    return [name for name, bit in _CAPABILITIES.items() if not held >> bit & 1]


def trial() -> None:
    """Make a network namespace with a pair of NICs, and remove it; raise UsageError if that fails.

    `require` must have passed.
    """
    name = f"slackline-trial-{os.getpid()}-{secrets.token_hex(2)}"
    execute([add_namespaces([name])])
    try:
        execute([Batch("ip", name, ("link add one type veth peer name two",))])
    finally:
        execute([delete_namespace(name)])


def require() -> None:
    """Check that labs can run here: Linux, root, its capabilities, iproute2.

    Raises UsageError otherwise.
    """
    if sys.platform != "linux":
        raise UsageError(f"a lab needs Linux, not {sys.platform}")
    if os.geteuid() != 0:
        raise UsageError("a lab needs root: it makes network namespaces")
    if lacking := lacking_capabilities():
        raise UsageError(
            f"a lab makes network namespaces and needs {' and '.join(lacking)}, which this process "
            "does not have: start the container, or the service, with "
            f"{'these capabilities' if len(lacking) > 1 else 'this capability'}"
        )
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            raise UsageError(f"a lab needs the command {tool!r}, of the package iproute2")


def execute(batches: Iterable[Batch]) -> None:
    """Run batches of commands in order; raise UsageError with the tool's output if one fails."""
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
    """Return the ids of the processes in a network namespace; empty if the namespace is missing."""
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
            continue  # The process has ended meanwhile.
        if (seen.st_ino, seen.st_dev) == (wanted.st_ino, wanted.st_dev):
            found.append(int(entry.name))
    return found

"""The names of this host and of its monotonic clock."""

import os
import socket
from pathlib import Path

__all__ = ["clock_name", "host_name"]

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE = "/proc/self/ns/time"


def host_name() -> str:
    """Return the host's name in its network."""
    return socket.gethostname()


def clock_name() -> str:
    """Return a name that two processes share exactly if they have the same CLOCK_MONOTONIC.

    The name is empty if the system does not give one; then no two clocks count as the same.
    """
    try:
        return f"{_BOOT.read_text().strip()} {os.readlink(_TIME_NAMESPACE)}"
    except OSError:
        return ""

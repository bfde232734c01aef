"""The names of this host, its processor, its monotonic clock and its numbers of processes."""

import os
import platform
import socket
from pathlib import Path

__all__ = ["clock_name", "host_name", "process_names", "processor_name"]

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESSORS = Path("/proc/cpuinfo")
_TIME_NAMESPACE = "/proc/self/ns/time"
_PROCESS_NAMESPACE = "/proc/self/ns/pid"


def host_name() -> str:
    """Return the host's name in its network."""
    return socket.gethostname()


def processor_name() -> str:
    """Return the model of this host's processor, or its architecture where no model is known."""
    for line in _PROCESSORS.read_text().splitlines() if _PROCESSORS.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def clock_name() -> str:
    """Return a name that two processes share exactly if they have the same CLOCK_MONOTONIC.

    The name is empty if the system does not give one; then no two clocks count as the same.
    """
    try:
        return f"{_BOOT.read_text().strip()} {os.readlink(_TIME_NAMESPACE)}"
    except OSError:
        return ""


def process_names() -> str:
    """Return a name that two processes share exactly if they number processes alike.

    Processes in different containers of one host may give the same number (pid) to different
    processes. The name is empty if the system does not give one.
    """
    try:
        return f"{_BOOT.read_text().strip()} {os.readlink(_PROCESS_NAMESPACE)}"
    except OSError:
        return ""

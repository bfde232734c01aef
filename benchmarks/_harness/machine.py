"""A description of the machine that a figure was measured on: hardware, versions, commit."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def describe_machine() -> dict[str, str | int | float]:
    """Return a description of the machine as JSON values; host name and paths are left out."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": _version("torch"),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load_before": round(os.getloadavg()[0], 2),
    }


def busy_seconds() -> float:
    """Return the processor time of all cores since this machine booted, in seconds."""
    user, nice, system, _idle, _waiting, hard, soft = _processor_seconds()
    return user + nice + system + hard + soft


def idle_seconds() -> float:
    """Return the time that all cores have been idle since boot, in seconds, in steps of 10 ms."""
    _user, _nice, _system, idle, waiting, _hard, _soft = _processor_seconds()
    return idle + waiting


def softirq_seconds() -> float:
    """Return the time that all cores have spent in soft interrupts since boot, in seconds.

    The kernel counts this time in steps of 10 ms. Where the kernel does not account interrupts
    precisely, the time of an interrupt is also counted as system time of the interrupted process.
    """
    return _processor_seconds()[6]


def _processor_seconds() -> tuple[float, ...]:
    """Return the seconds of all cores in user, nice, system, idle, I/O wait, hard and soft IRQ."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    return tuple(int(field) / os.sysconf("SC_CLK_TCK") for field in fields)


def sent_packets(pid: int, interface: str) -> int:
    """Return the number of packets that an interface in the namespace of process `pid` has sent.

    Packets that the kernel segments or coalesces later count once. Raises KeyError if there is no
    such interface.
    """
    return int(_interface_counters(pid, interface)[9])


def sent_bytes(pid: int, interface: str) -> int:
    """Return the bytes of all packets, with their headers, that such an interface has sent.

    Raises KeyError if there is no such interface.
    """
    return int(_interface_counters(pid, interface)[8])


def _interface_counters(pid: int, interface: str) -> list[str]:
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    counters = {name.strip(): line.split() for name, line in (row.split(":", 1) for row in lines)}
    return counters[interface]


def commit(*, apart_from: Path | None = None) -> str:
    """Return the checkout's short commit, with "-dirty" behind it if tracked files differ.

    The file `apart_from` in the checkout may differ.
    """
    head = _git("rev-parse", "--short", "HEAD")
    if head is None:
        return "unknown"
    files = ["."] if apart_from is None else [".", f":(exclude){apart_from.relative_to(ROOT)}"]
    return f"{head}-dirty" if _git("status", "--porcelain", "-uno", "--", *files) else head


def version(folder: str, *, without: Sequence[str] = ()) -> str:
    """Return the version of a folder, such as "native 1a2b3c4d", equal for equal tracked files.

    `without` are paths below it that do not count. The version has "-dirty" behind it if tracked
    files that count differ from the commit's.
    """
    paths = [folder, *(f":(exclude){path}" for path in without)]
    files = _git("ls-tree", "-r", "--full-tree", "HEAD", folder)
    if not files:
        return "unknown"
    counted = [line for line in files.splitlines() if not _below(line.split("\t")[1], without)]
    digest = hashlib.sha256("\n".join(counted).encode()).hexdigest()[:8]
    changed = _git("status", "--porcelain", "-uno", "--", *paths)
    return f"{folder} {digest}-dirty" if changed else f"{folder} {digest}"


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in folders)


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()

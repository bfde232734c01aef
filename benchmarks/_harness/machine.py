"""What a figure was measured on: the machine, the versions, the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def describe_machine() -> dict[str, str | int | float]:
    """The machine as JSON values; names neither the host nor a path."""
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
    """Processor time that everything on this machine has used since it booted, of all cores."""
    user, nice, system, _idle, _waiting, hard, soft = _processor_seconds()
    return user + nice + system + hard + soft


def softirq_seconds() -> float:
    """Return the time that all cores have spent in soft interrupts since the machine booted.

    The kernel counts it in steps of 10 ms. Where it has no precise accounting of interrupts, what
    interrupts a process is counted in that process's system time as well.
    """
    return _processor_seconds()[6]


def _processor_seconds() -> tuple[float, ...]:
    """Return user, nice, system, idle, waiting, hard and soft interrupts, of all cores."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    return tuple(int(field) / os.sysconf("SC_CLK_TCK") for field in fields)


def sent_packets(pid: int, interface: str) -> int:
    """Return the packets that an interface has sent, of the host or namespace of process `pid`.

    Packets that the kernel cuts or joins later count once. Raises KeyError where there is no such
    interface.
    """
    lines = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    counters = {name.strip(): line.split() for name, line in (row.split(":", 1) for row in lines)}
    return int(counters[interface][9])


def commit() -> str:
    """The checkout's short commit, "-dirty" behind it when tracked files differ from it."""
    head = _git("rev-parse", "--short", "HEAD")
    if head is None:
        return "unknown"
    return f"{head}-dirty" if _git("status", "--porcelain", "--untracked-files=no") else head


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

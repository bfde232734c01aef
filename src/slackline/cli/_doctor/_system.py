"""Checks of processors, memory, descriptors, clocks and versions.

Most checks are functions of facts that the caller passes in.
"""

import mmap
import os
import platform
import resource
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from slackline.cli._doctor._finding import Finding, Level
from slackline.cli._job._limits import group_limits, usable_cores
from slackline.units import count, show_bytes

__all__ = [
    "arena",
    "clock_source",
    "cores",
    "crc32c",
    "descriptors",
    "engine",
    "kernel",
    "memory",
    "read_text",
    "shared_files",
    "shared_memory",
    "system_findings",
    "torch_version",
]

_OLDEST_TORCH = (2, 11)
_ARENA = 64 << 30
_TRIAL = 64 << 20
_PROGRAM = 768 << 20
"""The address space of a rank that has imported torch, rounded up."""
_SHARED_FILES = 256 << 20
"""The size of /dev/shm below which a few batches of images fill it."""
_RANK_BYTES = 256 << 20
"""The memory of a rank that has imported torch and opened a group, rounded up."""

_DESCRIPTORS = 64
"""The file descriptors that a process has open without any link."""

_DESCRIPTORS_A_LINK = 5
"""The file descriptors that one link to a peer may need.

A link's rail is a path to the peer: a rail in shared memory has three descriptors, a TCP or UDP
rail has one. While a connection is set up, its accepted end at the listener takes one more.
"""


def system_findings(ranks: int) -> list[Finding]:
    """Return the result of every check in this file, for a job of `ranks` ranks on this machine."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    overcommit = read_text("/proc/sys/vm/overcommit_memory")
    return [
        kernel(platform.system(), platform.release()),
        engine(),
        torch_version(),
        cores(usable_cores(), ranks),
        memory(_available_bytes(read_text("/proc/meminfo")), group_limits().memory_bytes, ranks),
        shared_memory(),
        shared_files(_size_of("/dev/shm")),
        arena(address_space if address_space >= 0 else None, overcommit, ranks),
        descriptors(limit, ranks),
        clock_source(read_text("/sys/devices/system/clocksource/clocksource0/current_clocksource")),
        crc32c(platform.machine(), read_text("/proc/cpuinfo")),
    ]


def read_text(path: str) -> str:
    """Return a file's text without surrounding whitespace; empty if it cannot be read."""
    with suppress(OSError):
        return Path(path).read_text().strip()
    return ""


def kernel(system: str, release: str) -> Finding:
    """Check that the operating system is Linux."""
    value = f"{system} {release}"
    if system == "Linux":
        return Finding(name="kernel", value=value)
    return Finding(
        name="kernel",
        value=value,
        level=Level.MEND,
        advice="the engine needs Linux: run it there, or in a Linux container",
    )


def engine() -> Finding:
    """Check that the compiled extension can be imported."""
    name = "compiled engine"
    try:
        import slackline.nic  # noqa: F401  # The import loads the extension.
    except ImportError as error:
        return Finding(
            name=name,
            value="does not load",
            level=Level.MEND,
            advice=f"the compiled extension does not load ({error}): install the package again, "
            "by `make setup` in a clone or by `pip install --force-reinstall` of the wheel",
        )
    return Finding(name=name, value="loads")


def torch_version(installed: str | None = None) -> Finding:
    """Check that the installed torch is new enough, without importing it.

    `installed` is the version string; None looks it up in the installed packages.
    """
    if installed is None:
        with suppress(metadata.PackageNotFoundError):
            installed = metadata.version("torch")
    wanted = ".".join(map(str, _OLDEST_TORCH))
    if installed is None:
        value = "not installed"
    else:
        value = installed
        parts = installed.split("+")[0].split(".")[:2]
        if tuple(int(part) for part in parts if part.isdigit()) >= _OLDEST_TORCH:
            return Finding(name="torch", value=value)
    return Finding(
        name="torch",
        value=value,
        level=Level.MEND,
        advice=f"slackline needs torch {wanted} or later",
        command=f"pip install 'torch>={wanted}'",
    )


def cores(usable: int, ranks: int) -> Finding:
    """Check that there is a core for every rank."""
    value = f"{usable} for {count(ranks, 'rank')}"
    if usable >= ranks:
        return Finding(name="cores", value=value)
    return Finding(
        name="cores",
        value=value,
        level=Level.NOTE,
        advice=f"{ranks} ranks share {usable} cores: they wait for one another for milliseconds, "
        "and figures of speed mean little",
    )


def memory(available_bytes: int, limit_bytes: int | None, ranks: int) -> Finding:
    """Check that there is memory for every rank, before its model and its data.

    `limit_bytes` is the limit of this process's control groups; None without one.
    """
    usable = available_bytes if limit_bytes is None else min(available_bytes, limit_bytes)
    value = f"{show_bytes(usable)} for {count(ranks, 'rank')}"
    if limit_bytes is not None:
        value += f", control groups allow {show_bytes(limit_bytes)}"
    if usable >= ranks * _RANK_BYTES:
        return Finding(name="memory", value=value)
    return Finding(
        name="memory",
        value=value,
        level=Level.NOTE,
        advice=f"{count(ranks, 'rank')} need {show_bytes(ranks * _RANK_BYTES)} for torch alone: "
        "start fewer of them, or give the container more memory; the kernel kills a rank that "
        "has none",
    )


def shared_memory() -> Finding:
    """Check that memory can be shared by memfd_create and mmap, as the engine shares it."""
    name = "shared memory"
    try:
        fd = os.memfd_create("slackline-doctor", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, _TRIAL)
            with mmap.mmap(fd, _TRIAL) as memory:
                memory[-1] = 1
        finally:
            os.close(fd)
    except OSError as error:
        return Finding(
            name=name,
            value="does not work",
            level=Level.MEND,
            advice=f"memory cannot be shared by memfd_create ({error.strerror}), which every engine"
            " needs: let the container's seccomp profile or security policy allow it",
        )
    free = _available_bytes(read_text("/proc/meminfo"))
    return Finding(name=name, value=f"memfd works, {show_bytes(free)} available")


def _size_of(path: str) -> int | None:
    """Return the size in bytes of the file system at a path; None if the path does not exist."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def _available_bytes(meminfo: str) -> int:
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def shared_files(size: int | None) -> Finding:
    """Check that the file system /dev/shm holds the batches of a DataLoader's workers.

    torch passes tensors between processes of a DataLoader in files there; the engine needs none.
    `size` is the size of the file system in bytes, None if there is no such directory.
    """
    name = "/dev/shm"
    value = "missing" if size is None else show_bytes(size)
    if size is not None and size >= _SHARED_FILES:
        return Finding(name=name, value=value)
    return Finding(
        name=name,
        value=value,
        level=Level.NOTE,
        advice="slackline needs no room in /dev/shm, but the workers of torch's DataLoader pass "
        "their batches through files there: give the container more (--shm-size=1g or --ipc=host), "
        "or use num_workers=0",
        command="mount -t tmpfs -o size=1g tmpfs /dev/shm",
    )


def arena(address_space: int | None, overcommit: str, ranks: int) -> Finding:
    """Check that the address space of a rank holds the registered memory of all `ranks` ranks.

    Each engine wants 64 GiB of addresses for registered memory, and makes do with less where the
    address space is limited; pages are only allocated when first touched. `address_space` is the
    limit in bytes, None if there is none. `overcommit` is vm.overcommit_memory.
    """
    name = "address space"
    if address_space is not None:
        value = f"limited to {show_bytes(address_space)}"
        try:
            from slackline.nic.host import equal_arenas
        except ImportError:
            # The check of the compiled extension reports this failure.
            return Finding(name=name, value=value)
        each = equal_arenas(max(1, address_space - _PROGRAM), _ARENA, ranks)
        if each == 0:
            return Finding(
                name=name,
                value=value,
                level=Level.MEND,
                advice="torch and the registered memory of all ranks of this machine do not fit "
                "into the limit: ranks use TCP in place of shared memory, or do not start; lift "
                "the limit",
                command="ulimit -v unlimited",
            )
        if each < _ARENA:
            return Finding(
                name=name,
                value=value,
                level=Level.NOTE,
                advice=f"each of {count(ranks, 'rank')} gets about "
                f"{show_bytes(each)} of registered memory in place of {show_bytes(_ARENA)}: "
                "lift the limit if the job needs more",
                command="ulimit -v unlimited",
            )
    if overcommit == "2":
        return Finding(
            name=name,
            value="the kernel counts what is reserved",
            level=Level.MEND,
            advice=f"with vm.overcommit_memory=2 the kernel refuses the {show_bytes(_ARENA)} "
            "that an engine reserves: set it to 0, or SLACKLINE_ARENA to what is needed",
            command="sysctl -w vm.overcommit_memory=0",
        )
    return Finding(name=name, value="not limited")


def descriptors(limit: int, ranks: int) -> Finding:
    """Check that the limit of open files lets a rank have a link to every other rank."""
    needed = _DESCRIPTORS + _DESCRIPTORS_A_LINK * ranks
    value = "not limited" if limit < 0 else f"{limit} a process"
    if limit < 0 or limit >= needed:
        return Finding(name="descriptors", value=value)
    return Finding(
        name="descriptors",
        value=value,
        level=Level.MEND,
        advice=f"a rank of {ranks} may need {needed} open descriptors",
        command=f"ulimit -n {max(4096, needed)}",
    )


def clock_source(name: str) -> Finding:
    """Check that reading the clock needs no system call.

    The engine reads the clock for every frame.

    `name` is the kernel's clock source, empty if unknown.
    """
    if name in ("", "tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page"):
        return Finding(name="clock", value=name or "unknown")
    return Finding(
        name="clock",
        value=name,
        level=Level.NOTE,
        advice=f"reading the clock {name!r} is a slow call into the kernel, made for every frame: "
        "boot with clocksource=tsc where the processor has a steady one",
    )


def crc32c(machine: str, cpuinfo: str) -> Finding:
    """Check that the processor computes CRC32C, the checksum of the frames, in hardware."""
    wanted = "crc32" if machine in ("aarch64", "arm64") else "sse4_2"
    words = set(cpuinfo.replace("\n", " ").split())
    if wanted in words:
        return Finding(name="CRC32C", value=f"in hardware ({wanted})")
    return Finding(
        name="CRC32C",
        value="in software",
        level=Level.NOTE,
        advice="the processor has no CRC32C: checksums over wires cost several times more; "
        "NicOptions(checksums='none') leaves payloads to TCP",
    )

"""The sizes of registered memory that fit into limited address spaces.

A process maps its own arena (registered memory) and the arena of every other rank of its host. A
limit of its address space (`ulimit -v`) must hold all of them. The engine chooses the size of its
arena once, when it starts. No other rank relies on the size: ranks that cannot map each other's
arenas are connected by TCP or UDP.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from slackline._lazy import record
from slackline.units import show_bytes

__all__ = [
    "SMALLEST_ARENA",
    "Mapper",
    "as_large_as_possible",
    "equal_arenas",
    "left_address_space",
    "new_arena",
    "unmapped_text",
]

SMALLEST_ARENA = 16 << 20
"""The smallest arena that an engine works with, in bytes."""
_UNIT = 2 << 20
_FOR_THREADS = 256 << 20
"""The address space for the stacks and heaps of the engine's threads, in bytes."""
_FOR_THE_PROGRAM = 2
"""Arenas get one part of this number of the address space that is left; the program, which will
import and allocate more, keeps the rest."""
_TOO_LARGE = (errno.ENOMEM, errno.EFBIG)
"""The errors of an arena that is larger than the limit of the address space or of files."""

Made = TypeVar("Made")


@record(frozen=True, kw_only=True)
class Mapper:
    """A process of a host that maps the arenas of all processes of the host."""

    address_space: int
    """The bytes that the process could map when its nic was made; 0 if there is no limit."""
    arena_bytes: int
    """The size of the process's arena in bytes, or the largest wanted size of a new arena."""
    has_arena: bool
    """Whether the process has its arena already, so that its size is fixed."""


def new_arena(mapper: Mapper, mappers: Sequence[Mapper]) -> int:
    """Return the size in bytes of the arena that `mapper`, one of a host's `mappers`, makes.

    All new arenas of a host get the same limit: the largest with which every process can map all
    arenas of the host. An arena that a process has already, and that is too large for another
    process, does not count there, and neither does the limit of a process that could not even map
    new arenas of the smallest size.
    """
    limits = [limit for each in mappers if (limit := _limit(each, mappers))]
    if mapper.address_space:
        limits.append(_room(mapper) // _UNIT * _UNIT)
    return max(min(SMALLEST_ARENA, mapper.arena_bytes), min([mapper.arena_bytes, *limits]))


def equal_arenas(address_space: int, wanted: int, ranks: int) -> int:
    """Return the size in bytes of the arenas of `ranks` new engines on a host; 0 if none fits.

    Each engine may map `address_space` bytes and wants an arena of `wanted` bytes.
    """
    mapper = Mapper(address_space=address_space, arena_bytes=wanted, has_arena=False)
    mappers = [mapper] * ranks
    return new_arena(mapper, mappers) if _limit(mapper, mappers) else 0


def _limit(mapper: Mapper, mappers: Sequence[Mapper]) -> int:
    """Return the largest size of new arenas with which `mapper` can map all; 0 without a limit."""
    room = _room(mapper)
    new = max(1, sum(not each.has_arena for each in mappers))
    old = sum(each.arena_bytes for each in mappers if each.has_arena)
    for left in (room - old, room):
        if (share := left // new // _UNIT * _UNIT) >= SMALLEST_ARENA:
            return share
    return SMALLEST_ARENA if new * SMALLEST_ARENA <= mapper.address_space // _FOR_THE_PROGRAM else 0


def _room(mapper: Mapper) -> int:
    """Return the address space in bytes that all arenas together may take in a process."""
    return max(0, mapper.address_space - _FOR_THREADS) // _FOR_THE_PROGRAM


def left_address_space() -> int:
    """Return the bytes that this process may still map; 0 if its address space has no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return 0
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return max(1, limit - mapped)


def as_large_as_possible(make: Callable[[int], Made], size: int) -> Made:
    """Return `make(size)`; each time that a limit of the process forbids it, halve the size.

    Raises the OSError of the limit if even the smallest arena is too large.
    """
    while True:
        try:
            return make(size)
        except OSError as error:
            if error.errno not in _TOO_LARGE or size <= SMALLEST_ARENA:
                raise
        size = max(SMALLEST_ARENA, size // 2)


def unmapped_text(arena_bytes: int, error: OSError) -> str:
    """Return why this process cannot map an arena of another rank of its host, and what to do."""
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if error.errno != errno.ENOMEM:
        remedy = "let the container or the security policy allow that"
    elif most == resource.RLIM_INFINITY:
        remedy = (
            "raise vm.max_map_count, set vm.overcommit_memory to 0, or set SLACKLINE_ARENA to less "
            "on all ranks of the host"
        )
    else:
        remedy = (
            f"its address space, RLIMIT_AS, is limited to {show_bytes(most)}: lift the limit "
            f"(ulimit -v),"
            " or set SLACKLINE_ARENA to less on all ranks of the host"
        )
    return (
        f"process {os.getpid()} cannot map {show_bytes(arena_bytes)} of registered memory of a "
        f"rank of its host ({os.strerror(error.errno or 0)}); {remedy}"
    )

"""The limits of the process that an opening of a group can meet: open files, threads, memory."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from slackline.errors import SlacklineError, UsageError
from slackline.units import show_bytes

__all__ = ["clean_up", "limits_named", "require_descriptors", "run_all"]

_ENGINE = 9
"""The descriptors of an engine beside its listener: arena, doorbell and epoll; the event loop's
three; the monitor of addresses; and two that are open only for a moment."""
_PEER = 2
"""The descriptors of a link over shared memory: the control socket and the peer's doorbell. A rail
over TCP needs one, over UDP two."""
_MOMENT = 3
"""Descriptors that are open during the handshake of a link only."""
_NO_THREAD = "can't start new thread"
_ARENA = "of the arena"
"""The words of the engine's errors about its registered memory."""
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.ENOSYS}
_FULL = {errno.EMFILE, errno.ENFILE}


def require_descriptors(peers: int, *, starts: bool, rank: int) -> None:
    """Check that the process can open the descriptors of links to `peers` other ranks.

    With `starts`, the engine itself starts too. Raises UsageError that names the limit, the number
    of open descriptors and the needed number. Without this check the listening end of a link would
    meet the limit, where the kernel drops connections and descriptors in silence.
    """
    needed = (_ENGINE if starts else 0) + (_PEER * peers + _MOMENT if peers else 0)
    held: list[int] = []
    try:
        if needed:
            held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        while len(held) < needed:
            held.append(os.dup(held[0]))
    except OSError as error:
        for fd in held:
            os.close(fd)
        held.clear()
        raise _files_error(error, rank, needed) from error
    finally:
        for fd in held:
            os.close(fd)


@contextmanager
def limits_named(rank: int) -> Iterator[None]:
    """Raise UsageError for an error in the body that a limit of the process has caused.

    The message names the limit, and what to do. Any other error passes unchanged.
    """
    try:
        yield
    except SlacklineError:
        raise
    except (OSError, RuntimeError, MemoryError) as error:
        number, text = error.errno if isinstance(error, OSError) else None, str(error)
        if number in _FULL or os.strerror(errno.EMFILE) in text:
            raise _files_error(error, rank) from error
        if number in _FORBIDDEN and _ARENA in text:
            raise _forbidden_error(error, rank) from error
        if number == errno.EFBIG:
            raise _size_error(error, rank) from error
        if number == errno.EAGAIN or _NO_THREAD in text:
            raise _threads_error(error, rank) from error
        if number == errno.ENOMEM or isinstance(error, MemoryError):
            raise _memory_error(error, rank) from error
        raise


def clean_up(error: BaseException, *steps: Callable[[], object]) -> None:
    """Run every step after `error`; add a note to `error` for each step that fails too."""
    for step in steps:
        try:
            step()
        except Exception as also:
            error.add_note(f"the clean-up failed too: {type(also).__name__}: {also}")


def run_all(steps: Iterable[Callable[[], object]]) -> None:
    """Run every step, then raise the first error, with a note for each further step that failed.

    An exception of a signal handler, which may interrupt any step, leaves out no further step.
    """
    rest = iter(steps)
    for step in rest:
        try:
            step()
        except BaseException as error:
            clean_up(error, *rest)
            raise


def _files_error(error: BaseException, rank: int, needed: int | None = None) -> UsageError:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    more = "" if needed is None else f", and {needed} more are needed"
    if isinstance(error, OSError) and error.errno == errno.ENFILE:
        limit = "the limit of the whole host (fs.file-max) is reached: raise it with sysctl"
    else:
        limit = (
            f"the limit RLIMIT_NOFILE is {most}, {_open_descriptors()} are open{more}: raise the "
            "limit (ulimit -n, or LimitNOFILE of a service)"
        )
    return UsageError(f"the group cannot open: {error}: {limit}", rank=rank)


def _threads_error(error: BaseException, rank: int) -> UsageError:
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    shown = "unlimited" if most == resource.RLIM_INFINITY else most
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    limited = ""
    if space != resource.RLIM_INFINITY:
        limited = (
            f"; or its stack has no room, since RLIMIT_AS is {show_bytes(space)}: raise it "
            "(ulimit -v)"
        )
    return UsageError(
        f"the group cannot open: {error}: the process may have no more threads; RLIMIT_NPROC is "
        f"{shown}: raise it (ulimit -u), or the limit of processes of the container (pids.max)"
        f"{limited}",
        rank=rank,
    )


def _memory_error(error: BaseException, rank: int) -> UsageError:
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    shown = "unlimited" if most == resource.RLIM_INFINITY else show_bytes(most)
    return UsageError(
        f"the group cannot open: {error}: no more memory; RLIMIT_AS is {shown}: raise it "
        "(ulimit -v), or ask for a smaller arena (SLACKLINE_ARENA)",
        rank=rank,
    )


def _size_error(error: BaseException, rank: int) -> UsageError:
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return UsageError(
        f"the group cannot open: {error}: registered memory is a file without a name, and "
        f"RLIMIT_FSIZE is {show_bytes(most)}: raise it (ulimit -f)",
        rank=rank,
    )


def _forbidden_error(error: BaseException, rank: int) -> UsageError:
    return UsageError(
        f"the group cannot open: {error}: registered memory needs memfd_create, ftruncate and mmap:"
        " let the container's seccomp profile or security policy allow them",
        rank=rank,
    )


def _open_descriptors() -> int:
    """Return the number of open descriptors, counted without opening one."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = 0
    for fd in range(min(most, 1 << 16)):
        try:
            os.fstat(fd)
            found += 1
        except OSError:
            continue
    return found

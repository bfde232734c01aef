"""Processes that a job leaves behind when torchrun dies: they are adopted, and ended.

torchrun gives each rank a session of its own, so nothing ends the ranks of a torchrun that is
killed outright. Linux hands such orphans to the nearest ancestor that asked for them
(PR_SET_CHILD_SUBREAPER), together with whatever the ranks have started themselves.
"""

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

__all__ = ["Orphans", "children"]

_SET_CHILD_SUBREAPER = 36  # prctl's PR_SET_CHILD_SUBREAPER
_LINUX = sys.platform == "linux"


class Orphans:
    """What descends from one process that this one starts, and has lost its parent.

    Make it before that process starts, which must be in a session of its own: that is how its
    descendants are told from what this process starts besides. They are this process's children
    from the moment they are orphans, so their numbers are nobody else's until they are reaped
    here. Elsewhere than on Linux nothing is adopted. One thread at a time.
    """

    def __init__(self, grace: timedelta) -> None:
        """They get `grace` between SIGTERM and SIGKILL."""
        self._grace_s = grace.total_seconds()
        self._kill_s: float | None = None
        """When, once they have been asked to end."""
        self._asked = set[int]()
        if _LINUX:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "this process cannot adopt orphans")
        self._own = set(children(os.getpid()))
        """Started before: never an orphan of it."""

    def belongs(self, pid: int) -> None:
        """`pid` is the process that was started; who started it reaps it."""
        self._own.add(pid)

    def reap(self) -> None:
        """Let those that have ended by themselves go; cheap, to be called now and then."""
        while _LINUX:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or not self._is_one(found.si_pid):
                return  # that child is waited for elsewhere
            os.waitpid(found.si_pid, 0)

    def gone(self, timeout: timedelta) -> bool:
        """Whether none is left, after at most `timeout`; the first call asks all to end.

        For when the process that was started has ended. Those that come later, as their own
        parents end, are asked too; the grace is the same for all. One that runs as somebody else,
        whom this process may not signal, is let be.
        """
        deadline_s = time.monotonic() + timeout.total_seconds()
        # Of those that have ended, too: where one is, what it has started may be ours by now.
        while found := [pid for pid in children(os.getpid(), ended=True) if self._is_one(pid)]:
            if not (left := [pid for pid in found if self._tell(pid)]):
                continue
            assert self._kill_s is not None
            now_s = time.monotonic()
            if now_s >= deadline_s:
                return False
            until_s = deadline_s if now_s >= self._kill_s else min(deadline_s, self._kill_s)
            _first_ended(left, until_s - now_s)
        return True

    def _is_one(self, pid: int) -> bool:
        if pid in self._own:
            return False
        with suppress(ProcessLookupError):  # a short command of another thread
            return os.getsid(pid) != os.getsid(0)
        return False

    def _tell(self, pid: int) -> bool:
        """Ask or force it to end; False when it has, and is reaped."""
        if self._kill_s is None:
            self._kill_s = time.monotonic() + self._grace_s
        try:
            if time.monotonic() >= self._kill_s:
                os.kill(pid, signal.SIGKILL)
            elif pid not in self._asked:
                self._asked.add(pid)
                os.kill(pid, signal.SIGTERM)
        except PermissionError:
            self._own.add(pid)
            return False
        return os.waitpid(pid, os.WNOHANG)[0] == 0


def _first_ended(pids: list[int], seconds: float) -> None:
    """Blocks until one of the children `pids` has ended, or for so long."""
    handles = [os.pidfd_open(pid) for pid in pids]
    try:
        ended = select.poll()
        for handle in handles:
            ended.register(handle, select.POLLIN)
        ended.poll(max(seconds, 0) * 1000)
    finally:
        for handle in handles:
            os.close(handle)


def children(parent: int, *, ended: bool = False) -> list[int]:
    """The processes that `parent` has started or adopted; empty where there is no /proc.

    With `ended` also those that have ended and were not reaped.
    """
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        if int(fields[1]) == parent and (ended or fields[0] not in "ZX"):
            found.append(int(stat.parent.name))
    return found

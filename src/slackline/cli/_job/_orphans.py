"""Adoption and termination of the processes that a job leaves behind when torchrun dies.

torchrun gives each rank a session of its own, so the ranks go on when torchrun is killed. Linux
makes such orphans children of the nearest ancestor that has set PR_SET_CHILD_SUBREAPER. The same
holds for processes that the ranks have started themselves.
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

__all__ = ["Orphans", "children", "environment_of"]

_SET_CHILD_SUBREAPER = 36  # The value is prctl's PR_SET_CHILD_SUBREAPER.
_LINUX = sys.platform == "linux"


class Orphans:
    """The orphaned descendants of one process that this process starts.

    Create the object before that process starts, and start the process in a session of its own: the
    session distinguishes its descendants from other children of this process. Orphans become
    children of this process, so their process ids are not reused until they are reaped here. On
    systems other than Linux no process is adopted. One thread at a time may use the object.
    """

    def __init__(self, grace: timedelta) -> None:
        """Register this process as the one that adopts orphans.

        `grace` is the time between SIGTERM and SIGKILL for the orphans.
        """
        self._grace_s = grace.total_seconds()
        self._kill_s: float | None = None
        """The time of SIGKILL on the monotonic clock, in seconds; None before SIGTERM was sent."""
        self._asked = set[int]()
        self.cut_off = set[int]()
        """The ranks with a process that had not ended in time after SIGTERM and was killed."""
        if _LINUX:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "this process cannot adopt orphans")
        self._own = set(children(os.getpid()))
        """Process ids that are never orphans of the started process, such as earlier children."""

    def belongs(self, pid: int) -> None:
        """Exclude the started process `pid` itself; the code that started the process reaps it."""
        self._own.add(pid)

    def end_at_once(self) -> None:
        """Let the next calls of `gone` kill the orphans without SIGTERM and without a delay."""
        self._kill_s = time.monotonic()

    def reap(self) -> None:
        """Reap the orphans that have ended by themselves; cheap, for periodic calls."""
        while _LINUX:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or not self._is_one(found.si_pid):
                return  # Another part of the program waits for that child.
            os.waitpid(found.si_pid, 0)

    def gone(self, timeout: timedelta) -> bool:
        """End all orphans, wait at most `timeout`, and return whether none is left.

        Call this when the started process has ended. The first call sends SIGTERM to all orphans;
        orphans that appear later, as their own parents end, get SIGTERM too. The time of SIGKILL is
        the same for all. An orphan of another user, which this process may not signal, is left
        alone.
        """
        deadline_s = time.monotonic() + timeout.total_seconds()
        # Include zombies: where one is found, its own children may be orphans by now.
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
        # The child may be a short command that another thread has started and reaped.
        with suppress(ProcessLookupError):
            return os.getsid(pid) != os.getsid(0)
        return False

    def _tell(self, pid: int) -> bool:
        """Ask an orphan to end, or kill it after the grace time; return whether it still runs.

        An orphan of another user counts as not running, since this process may not signal it.
        """
        if self._kill_s is None:
            self._kill_s = time.monotonic() + self._grace_s
        try:
            if time.monotonic() >= self._kill_s:
                if pid in self._asked and (rank := environment_of(pid).get("RANK", "")).isdigit():
                    self.cut_off.add(int(rank))
                os.kill(pid, signal.SIGKILL)
            elif pid not in self._asked:
                self._asked.add(pid)
                os.kill(pid, signal.SIGTERM)
        except PermissionError:
            self._own.add(pid)
            return False
        return os.waitpid(pid, os.WNOHANG)[0] == 0


def _first_ended(pids: list[int], seconds: float) -> None:
    """Block until one of the child processes `pids` has ended, for at most `seconds`."""
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
    """Return the ids of the processes that `parent` has started or adopted; empty without /proc.

    `ended` also includes zombies, which have ended but were not reaped.
    """
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # The process has ended meanwhile.
        if int(fields[1]) == parent and (ended or fields[0] not in "ZX"):
            found.append(int(stat.parent.name))
    return found


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with; empty if the process has ended."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)

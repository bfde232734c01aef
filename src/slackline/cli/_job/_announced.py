"""The running jobs of this user on this machine, announced so that other commands can find them.

`slackline run` writes one small file for its job to a folder that only this user can write, and
removes the file at the end. The file names its process by id and start time, so that the file of a
command that was killed is recognised and ignored.
"""

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Self

from slackline._process_start import started
from slackline.env import runtime_folders
from slackline.errors import UsageError
from slackline.units import count

__all__ = ["RunningJob", "announced", "find_job", "running_jobs"]


@dataclass(frozen=True, kw_only=True)
class RunningJob:
    """A job of `slackline run` that is running on this machine."""

    pid: int
    """The process id of the command."""
    started: int
    """The start time of the command's process, in clock ticks since boot."""
    directory: str
    """The absolute path of the directory with the job's output and telemetry."""
    program: str
    """The script or the module as the command line names it."""
    ranks: int
    """The number of ranks of the whole job."""

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Return the job of a file; None if the file is gone or is of another version."""
        try:
            said = json.loads(path.read_text())
            job = cls(**{field.name: said[field.name] for field in fields(cls)})
        except (FileNotFoundError, KeyError, TypeError, ValueError):
            return None
        return job if started(job.pid) == job.started else None


def running_jobs() -> list[RunningJob]:
    """Return the running jobs of this user on this machine, by process id."""
    found = {}
    for folder in _own_folders():
        for path in folder.glob("[0-9]*.json"):
            if (job := RunningJob.read(path)) is not None:
                found[job.pid] = job
    return [found[pid] for pid in sorted(found)]


def find_job() -> RunningJob:
    """Return the only running job of this user on this machine.

    Raises UsageError if there is no such job, and if there are several.
    """
    found = running_jobs()
    if not found:
        raise UsageError(
            "this user runs no job of slackline run on this machine: name the directory of a "
            "job's telemetry"
        )
    if len(found) > 1:
        known = ", ".join(
            f"{each.directory} ({each.program}, {count(each.ranks, 'rank')})" for each in found
        )
        raise UsageError(f"this user runs {len(found)} jobs, name the directory of one: {known}")
    return found[0]


@contextmanager
def announced(
    directory: Path, program: str, ranks: int, note: Callable[[str], None]
) -> Iterator[None]:
    """Announce a job of this process while the context lasts.

    If the file cannot be written, `note` receives a sentence with the reason, and the job runs
    without the file.
    """
    pid = os.getpid()
    job = RunningJob(
        pid=pid,
        started=started(pid) or 0,
        directory=str(directory.absolute()),
        program=program,
        ranks=ranks,
    )
    path = runtime_folders()[0] / "jobs" / f"{pid}.json"
    try:
        _make(path.parent)
        draft = path.with_name(f".{pid}")
        draft.write_text(json.dumps(asdict(job)))
        draft.replace(path)
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        note(f"slackline top needs this job's directory, {directory}: {reason}")
        yield
        return
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _own_folders() -> Iterator[Path]:
    """Yield the folders of announced jobs that belong to this user and that no other can write."""
    for folder in runtime_folders():
        jobs = folder / "jobs"
        if all(_is_own(each) for each in (folder, jobs)):
            yield jobs


def _make(jobs: Path) -> None:
    """Create the folder and its parent; raise OSError if another user owns or can write them."""
    for folder in (jobs.parent, jobs):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_own(folder):
            raise PermissionError(errno.EPERM, f"another user owns or can write {folder}")


def _is_own(folder: Path) -> bool:
    try:
        seen = folder.lstat()
    except FileNotFoundError:
        return False
    own = stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid()
    return own and not seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH)

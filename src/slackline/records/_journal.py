"""The only writer of a process's telemetry file: a thread, a bounded queue, a file descriptor.

A training thread only appends a record to the queue. The journal's thread turns records into lines
and writes them, so that a slow or full disk delays no training thread. If the queue or the disk is
full, records are left out and counted; a `Gap` in the file states their number and the reason.
"""

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from weakref import WeakValueDictionary

from slackline.errors import UsageError
from slackline.records._host import clock_name, host_name, process_names
from slackline.records._lines import encode
from slackline.records._operations import Operations, OperationsText
from slackline.records._records import (
    SCHEMA_VERSION,
    FileHeader,
    Gap,
    LinkReport,
    LinkVerdict,
    RailChange,
    Written,
)
from slackline.units import show_bytes

__all__ = ["DEFAULT_LIMIT_BYTES", "Journal", "journal_of"]

_log = logging.getLogger("slackline.records")

DEFAULT_LIMIT_BYTES = 1 << 30
"""The size of a file beyond which records are left out."""

_MOST_WAITING_BYTES = 16 << 20
"""The most memory that waiting records may take, as estimated by `_weight`."""

_GATHER_S = 0.1
"""The time for which the thread gathers records before it writes them together."""

_POLL_S = 0.25
"""The time between two calls of the sources of records."""

_PATIENCE_S = 5.0
"""The time for which `close` and `flush` wait for a slow disk."""

_MOST_BATCH_BYTES = 256 << 10

_URGENT = (RailChange, LinkVerdict)
"""The kinds of records that are written at once: someone may wait for them to name a fault."""

_BULKY = (Operations, OperationsText, LinkReport)
"""The kinds of records that may fill only three quarters of a file."""


Source = Callable[[], list[Written]]
"""A function that returns the new records since its previous call."""


class Journal:
    """The writer of one file, shared by all `Writer` objects of the process for that file.

    Any thread may call the methods. In a forked child they do nothing.
    """

    def __init__(self, path: Path, rank: int, limit_bytes: int) -> None:
        """Start the thread, which creates the file; raise UsageError if `path` cannot be a file."""
        if path.parent.exists() and not path.parent.is_dir():
            raise UsageError(f"telemetry must be a directory, and {path.parent} is a file")
        self._path, self._rank, self._limit_bytes = path, rank, limit_bytes
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._sources: list[Source] = []
        self._waiting: deque[Written] = deque()
        self._waiting_bytes = 0
        self._lost, self._reason = 0, ""
        self._handed = self._handled = 0
        self._some = threading.Event()
        self._idle = threading.Condition(self._lock)
        self._hurry = threading.Event()
        self.users = 0
        """The number of `Writer` objects that use the journal."""
        self.ended = False
        """Whether no record can be handed in any more."""
        self._file = -1
        self._headed = self._torn = False
        self._size = 0
        self._warned = ""
        self._thread = threading.Thread(target=self._run, name="slackline-telemetry", daemon=True)
        self._thread.start()
        # Exit handlers that run later may still hand in records, and write them by `close`.
        atexit.register(self.flush)

    def put(self, record: Written) -> None:
        """Hand a record to the thread, without waiting for the disk; the record may be left out."""
        if os.getpid() != self._process:
            return
        weight = _weight(record)
        with self._lock:
            if self.ended:
                return
            if self._waiting_bytes + weight > _MOST_WAITING_BYTES:
                self._lose("records come faster than the disk takes them")
                return
            self._waiting.append(record)
            self._waiting_bytes += weight
            self._handed += 1
        if isinstance(record, _URGENT):
            self._hurry.set()
        if not self._some.is_set():
            self._some.set()

    def poll(self, source: Source) -> None:
        """Call `source` on the journal's thread four times a second; write what it returns."""
        with self._lock:
            self._sources.append(source)
        self._some.set()

    def forget(self, source: Source) -> None:
        """Stop calling `source`; one last call may still be running."""
        with self._lock:
            self._sources.remove(source)

    def flush(self) -> bool:
        """Wait until every record handed in so far is written or left out; False after 5 s."""
        if os.getpid() != self._process:
            return True
        with self._lock:
            until = self._handed
            self._hurry.set()
            self._some.set()
            return self._idle.wait_for(lambda: self._handled >= until, _PATIENCE_S)

    def close(self) -> None:
        """Write all pending records; the call of the last user ends the thread."""
        with _journals_lock:
            self.users -= 1
            last = self.users == 0
            if last:
                self.ended = True
        if last:
            self.end()
        else:
            self.flush()

    def end(self) -> None:
        """Write all pending records and end the thread; a second call does nothing."""
        if os.getpid() != self._process:
            return
        atexit.unregister(self.flush)
        with self._lock:
            self.ended = True
        self._hurry.set()
        self._some.set()
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            self._warn(f"{self._path}: the disk does not take the last records in time")

    def _lose(self, reason: str, count: int = 1) -> None:
        """Count records that are left out; the lock must be held."""
        self._lost += count
        self._reason = reason

    def _run(self) -> None:
        self._append([])
        ended = False
        while not ended:
            self._some.wait(_POLL_S if self._sources else None)
            self._hurry.wait(_GATHER_S)
            self._some.clear()
            self._hurry.clear()
            ended = self._turn()
        self._append([])
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _turn(self) -> bool:
        """Write the waiting records and those of the sources; return whether no more can come.

        The thread waits outside of this call, so that no local variable of a thread that waits at
        the interpreter's exit keeps a source, and with it an engine, alive.
        """
        with self._lock:
            records, self._waiting = list(self._waiting), deque()
            self._waiting_bytes = 0
            ended = self.ended
            sources = [] if ended else list(self._sources)
        self._write(records)
        for source in sources:
            self._write(source())
        with self._lock:
            self._handled += len(records)
            self._idle.notify_all()
        return ended

    def _header(self) -> FileHeader:
        return FileHeader(
            version=SCHEMA_VERSION,
            rank=self._rank,
            time_ns=time.time_ns(),
            monotonic_ns=time.monotonic_ns(),
            host=host_name(),
            clock=clock_name(),
            process=self._process,
            processes=process_names(),
        )

    def _write(self, records: list[Written]) -> None:
        """Write records as lines, in batches of limited size."""
        batch: list[bytes] = []
        length = 0
        for record in records:
            line = encode(record).encode() + b"\n"
            share = 3 if isinstance(record, _BULKY) else 4
            if self._size + length + len(line) > self._limit_bytes * share // 4:
                if batch:  # The gap's record follows the records before it.
                    self._append(batch)
                    batch, length = [], 0
                with self._lock:
                    self._lose(f"the file has reached its limit of {show_bytes(self._limit_bytes)}")
                self._warn(f"{self._path}: the file has reached its limit; records are left out")
                continue
            batch.append(line)
            length += len(line)
            if length >= _MOST_BATCH_BYTES:
                self._append(batch)
                batch, length = [], 0
        if batch:
            self._append(batch)

    def _append(self, lines: list[bytes]) -> None:
        """Append lines; lines that the disk does not take are counted as lost.

        The file's header precedes the first line, and a `Gap` precedes the first line after a loss.
        """
        with self._lock:
            lost, reason = self._lost, self._reason
        notes: list[Written] = [] if self._headed else [self._header()]
        if lost:
            notes.append(Gap(rank=self._rank, time_ns=time.time_ns(), lost=lost, reason=reason))
        told = [encode(note).encode() + b"\n" for note in notes]
        body = b"".join([*told, *lines])
        if not body:
            return
        whole, why = self._put_bytes(body)
        self._headed = self._headed or whole > 0
        with self._lock:
            if lost and whole >= len(told):
                self._lost -= lost
            if why:
                self._lose(why, len(lines) - max(0, whole - len(told)))
        if why:
            self._warn(f"{self._path}: {why}; records are left out, and training goes on")

    def _put_bytes(self, body: bytes) -> tuple[int, str]:
        """Write `body`; return the number of whole lines written and the disk's error, or "".

        If the disk takes only a part of a line, the part is removed from the file again.
        """
        written = 0
        why = ""
        try:
            if self._file < 0:
                self._file = self._create()
            if self._torn:  # The line that was cut short ends here.
                self._size += os.write(self._file, b"\n")
                self._torn = False
            while written < len(body):
                written += os.write(self._file, body[written:])
        except OSError as error:
            why = error.strerror or str(error)
        whole = body.rfind(b"\n", 0, written) + 1
        self._size += whole
        if whole < written:
            self._cut_to_size(written - whole)
        return body[:whole].count(b"\n"), why

    def _cut_to_size(self, surplus: int) -> None:
        """Remove the part of a line after the file's last whole line, which has `surplus` bytes."""
        try:
            os.ftruncate(self._file, self._size)
        except OSError:  # The next line that is written ends the torn one.
            self._torn = True
            self._size += surplus

    def _create(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        file = os.open(self._path, flags, 0o644)
        self._size = os.fstat(file).st_size
        if self._size:  # An earlier process may have been killed in the middle of a line.
            with self._path.open("rb") as before:
                before.seek(-1, os.SEEK_END)
                self._torn = before.read(1) != b"\n"
        return file

    def _warn(self, sentence: str) -> None:
        """Log each sentence once."""
        if sentence != self._warned:
            self._warned = sentence
            _log.warning("%s", sentence)


_journals: WeakValueDictionary[tuple[int, Path], Journal] = WeakValueDictionary()
_journals_lock = threading.Lock()


def journal_of(path: Path, rank: int, limit_bytes: int) -> Journal:
    """Return the process's journal for a file, and count one more user of that journal.

    The first call for a file starts the journal.

    The engine, gradient overlap and a pipeline write to the same file and share no other object,
    so the process has one table of open journals.
    """
    key = os.getpid(), path.absolute()
    with _journals_lock:
        journal = _journals.get(key)
        if journal is None or journal.ended:
            journal = _journals[key] = Journal(path, rank, limit_bytes)
        journal.users += 1
        return journal


def _weight(record: Written) -> int:
    """Return a rough bound of the bytes of memory that a record takes while it waits."""
    if isinstance(record, OperationsText):
        return 256 + len(record.rows)
    lengths = (len(value) for value in vars(record).values() if isinstance(value, (tuple, str)))
    return 1024 + 64 * sum(lengths)

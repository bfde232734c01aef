"""The output of a job's ranks: read from pipes, kept in files, and passed on.

A rank that wrote to the files itself would end by an error once the disk is full. It writes to
pipes instead, and a thread of the command copies them to the files as long as the disk takes it.

    rank 1 > pipe > the command's thread > DIRECTORY/1/stdout.log
"""

import os
import resource
import selectors
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slackline._file_tail import FileTail
from slackline.errors import UsageError

__all__ = ["Output", "writing_to"]

_STREAMS = ("stdout", "stderr")
_PIECE_BYTES = 1 << 16
_KEPT_BYTES = 1 << 20
"""The bytes of a stream's end that stay in memory if its file cannot be written."""

_DESCRIPTORS_A_RANK = 6
"""Descriptors of torchrun's process for each rank: the ends of two pipes, and torch's own two."""


@contextmanager
def writing_to(directory: Path) -> Iterator[None]:
    """Raise UsageError that names the directory in place of an OSError in the context."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"the job's directory {directory} cannot be written: {error.strerror or error}"
        ) from error


class Output:
    """The pipes and files of all ranks' output. One thread at a time may call the methods."""

    def __init__(self, directory: Path, ranks: range) -> None:
        """Make the pipes, and the files in `directory`; raise OSError if they cannot be made."""
        _allow_descriptors(128 + _DESCRIPTORS_A_RANK * len(ranks))
        self._streams: dict[tuple[int, str], _Stream] = {}
        for rank in ranks:
            folder = directory / str(rank)
            folder.mkdir(parents=True)
            for name in _STREAMS:
                self._streams[rank, name] = _Stream(folder / f"{name}.log", keep_all=rank == 0)
        self._ended = threading.Event()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._copy, name="slackline-output", daemon=True)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors that torchrun's process gets: both ends of every pipe."""
        return tuple(end for each in self._streams.values() for end in (each.source, each.target))

    @property
    def targets(self) -> str:
        """The descriptors that the ranks write to, for torchrun's process: "5:7,9:11"."""
        ends = [str(each.target) for each in self._streams.values()]
        return ",".join(":".join(pair) for pair in zip(ends[::2], ends[1::2], strict=True))

    @property
    def error(self) -> str:
        """Why output could not be written to its file; empty if all could."""
        return next((each.error for each in self._streams.values() if each.error), "")

    def start(self) -> None:
        """Begin to copy; torchrun's process has its descriptors by now."""
        for each in self._streams.values():
            os.close(each.target)
        self._thread.start()

    def finish(self) -> None:
        """Copy what the ranks have written until now, and end the thread; may be called again."""
        if self._ended.is_set():
            return
        self._ended.set()
        os.write(self._wake_write, b"!")
        self._thread.join()
        for end in (self._wake_read, self._wake_write):
            os.close(end)

    def take(self, rank: int, name: str) -> bytes:
        """Return a stream's output since the last call; empty for a rank of another machine."""
        stream = self._streams.get((rank, name))
        return b"" if stream is None else stream.take()

    def end_of(self, rank: int, name: str, most: int = _KEPT_BYTES) -> bytes:
        """Return at most the last `most` bytes of a stream; empty for a rank of another machine."""
        stream = self._streams.get((rank, name))
        return b"" if stream is None else stream.end(most)

    def spoken_ns(self, rank: int, name: str) -> int:
        """Return the Unix time of the stream's latest output; 0 if there was none."""
        stream = self._streams.get((rank, name))
        return 0 if stream is None else stream.spoken_ns

    def _copy(self) -> None:
        """Copy from the pipes until the end of the job, and then what is still in the pipes."""
        with selectors.DefaultSelector() as ready:
            ready.register(self._wake_read, selectors.EVENT_READ)
            for each in self._streams.values():
                ready.register(each.source, selectors.EVENT_READ, each)
            while not self._ended.is_set():
                for key, _ in ready.select():
                    if key.data is not None and not key.data.copy():
                        ready.unregister(key.fileobj)
        for each in self._streams.values():
            each.finish()


class _Stream:
    """The stdout or stderr of a rank: a pipe, a file, and the output that the file did not take."""

    def __init__(self, path: Path, *, keep_all: bool) -> None:
        """Make the pipe and the file; `keep_all` keeps all output that the file does not take."""
        self.source, self.target = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.source, False)
        self.error = ""
        self.spoken_ns = 0
        self._path, self._keep_all = path, keep_all
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._shown = FileTail(path)
        self._lock = threading.Lock()
        self._rest = b""
        self._rest_shown = 0

    def copy(self) -> bool:
        """Copy one piece from the pipe to the file; return False at the end of the pipe."""
        try:
            piece = os.read(self.source, _PIECE_BYTES)
        except BlockingIOError:
            return True
        if piece:
            self.spoken_ns = time.time_ns()
            self._put(piece)
        return bool(piece)

    def finish(self) -> None:
        """Copy what is still in the pipe, and close pipe and file."""
        with suppress(BlockingIOError):  # A process that the ranks left behind holds the pipe.
            while piece := os.read(self.source, _PIECE_BYTES):
                self.spoken_ns = time.time_ns()
                self._put(piece)
        os.close(self.source)
        os.close(self._file)

    def take(self) -> bytes:
        """Return the output since the last call."""
        with self._lock:
            added = self._shown.read()
            rest, self._rest_shown = self._rest[self._rest_shown :], len(self._rest)
        return added + rest

    def end(self, most: int) -> bytes:
        """Return at most the last `most` bytes of the stream."""
        with self._lock:
            rest = self._rest
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            return (file.read() + rest)[-most:]
        return rest[-most:]

    def _put(self, piece: bytes) -> None:
        """Append a piece to the file, or to the memory once the file has not taken one."""
        rest = piece
        if not self.error:
            try:
                while rest:
                    rest = rest[os.write(self._file, rest) :]
            except OSError as error:
                self.error = error.strerror or str(error)
        if rest:
            with self._lock:
                self._rest += rest
                surplus = 0
                if not self._keep_all:
                    surplus = len(self._rest) - _KEPT_BYTES
                elif self._rest_shown > _KEPT_BYTES:
                    surplus = self._rest_shown - _KEPT_BYTES
                if surplus > 0:
                    self._rest = self._rest[surplus:]
                    self._rest_shown = max(0, self._rest_shown - surplus)


def _allow_descriptors(needed: int) -> None:
    """Raise the soft limit of open files to `needed`, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))

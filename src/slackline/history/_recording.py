"""The telemetry of a run, with the files of all ranks, read line by line.

    first pass     headers, clocks, groups      >  checks, one clock for all ranks
    second pass    every record                 >  in the order of that clock

Files are read twice, so that the memory does not grow with their size.
"""

import heapq
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from slackline.errors import UsageError
from slackline.history._align import Alignment, align
from slackline.history._files import LineReader, files_of, telemetry_of
from slackline.history._times import written_ns
from slackline.records import ClockOffset, FileHeader, GroupOpened, Record
from slackline.units import count

__all__ = ["Found", "Recording"]

_UNNEEDED = (b'{"record":"operations"', b'{"record":"link"', b'{"record":"step"')
"""The beginnings of most lines of a file, which hold nothing that the first pass needs."""
_PIPELINE = b'{"record":"pipeline"'


class Found(NamedTuple):
    """A record, with its place in the files and its time."""

    time_ns: int
    """A time that never decreases in a file: the latest one of the file's records so far, as Unix
    time by the reference clock."""
    rank: int
    """The rank that has written the record."""
    place: str
    """The file and the line, "DIR/rank-00000.jsonl:12"."""
    record: Record


class Recording:
    """A run's telemetry: the ranks, their clocks, and their records in the order of time."""

    def __init__(self, directory: Path, report: Callable[[str], None]) -> None:
        """Read the headers, clocks and groups of all ranks.

        `report` receives a sentence for a last line that is cut and, while `records` are read, for
        each damaged line; these lines are left out. Raises UsageError that names the file, and the
        line where there is one: without records, for another version of the schema, a rank without
        a file, and clocks that cannot be compared.
        """
        self.directory = telemetry_of(directory)
        """The directory that holds the ranks' files."""
        self.headers: dict[int, FileHeader] = {}
        """The first header of each rank, in rising order of the ranks."""
        self.pipeline_ranks: set[int] = set()
        """The ranks with steps of a pipeline."""
        self._report = report
        self._paths: dict[int, Path] = {}
        self._clocks: list[ClockOffset] = []
        self._groups: list[tuple[str, GroupOpened]] = []
        paths = files_of(self.directory)
        if not paths:
            raise UsageError(
                f"there is no telemetry in {directory}: it has no rank-*.jsonl; "
                "slackline run --keep DIR and SLACKLINE_TELEMETRY=DIR write telemetry"
            )
        for path in paths:
            self._open(path)
        self.headers = dict(sorted(self.headers.items()))
        self._check_ranks()
        self.alignment: Alignment = align([*self.headers.values(), *self._clocks])
        """The clocks of all ranks' hosts, compared with that of the lowest rank's host."""
        self._check_clocks()

    @property
    def start_ns(self) -> int:
        """The time at which the first rank began to write: Unix time by the reference clock."""
        return min(
            self.alignment.unix_ns(rank, header.monotonic_ns)
            for rank, header in self.headers.items()
        )

    def unix_ns(self, rank: int, time_ns: int) -> int:
        """Convert Unix time of the rank's host to Unix time by the reference clock."""
        return self.alignment.unix_ns(rank, self.alignment.from_unix(rank, time_ns))

    def records(self) -> Iterator[Found]:
        """Yield the records of all ranks in the order of `Found.time_ns`.

        Raises UsageError that names file and line for a record with a wrong value.
        """
        yield from heapq.merge(
            *(self._records(rank) for rank in self.headers), key=lambda found: found.time_ns
        )

    def _open(self, path: Path) -> None:
        """Read the records of a file that the first pass needs."""
        header: FileHeader | None = None
        for number, line, record in _lines(path, cut=self._report, skip=_UNNEEDED):
            if header is not None and line.startswith(_PIPELINE):
                self.pipeline_ranks.add(header.rank)
            place = f"{path}:{number}"
            match record:
                case FileHeader() if header is None:
                    header = record
                    self._add(place, path, record)
                case FileHeader() if header is not None and record.clock != header.clock:
                    raise UsageError(
                        f"{place}: a second process of rank {record.rank} has another clock than "
                        "the first one: give the telemetry of one run"
                    )
                case ClockOffset():
                    self._clocks.append(record)
                case GroupOpened():
                    self._groups.append((place, record))
                case _:
                    pass
        if header is None:
            raise UsageError(f'{path}:1: there is no "file" record, with which telemetry begins')

    def _add(self, place: str, path: Path, header: FileHeader) -> None:
        if header.rank in self._paths:
            raise UsageError(
                f"{place}: the records are of rank {header.rank}, as are those of "
                f"{self._paths[header.rank]}"
            )
        self.headers[header.rank] = header
        self._paths[header.rank] = path

    def _check_ranks(self) -> None:
        """Raise UsageError if a member of a group has no file."""
        for place, group in self._groups:
            missing = sorted(set(group.members) - set(self._paths))
            if missing:
                raise UsageError(
                    f"{place}: the group of {count(group.size, 'rank')} has rank {missing[0]}, and "
                    f"{self.directory} has no file of that rank"
                )

    def _check_clocks(self) -> None:
        """Raise UsageError if a rank's clock cannot be compared with the reference clock."""
        for rank, header in self.headers.items():
            if rank not in self.alignment:
                raise UsageError(
                    f"{self._paths[rank]}:1: the clock of rank {rank} on host {header.host} cannot "
                    f"be compared with that of rank {self.alignment.reference}: no probe of a link "
                    "joins their hosts"
                )

    def _records(self, rank: int) -> Iterator[Found]:
        """Yield the records of one rank, each with the latest time of the file so far."""
        path, latest_ns = self._paths[rank], 0
        for number, _, record in _lines(path, damaged=self._report):
            if record is None:
                continue
            place = f"{path}:{number}"
            if record.rank != rank:
                raise UsageError(f"{place}: the record is of rank {record.rank}, not of {rank}")
            try:
                latest_ns = max(latest_ns, self._time_ns(rank, record))
            except (TypeError, ValueError) as error:
                raise UsageError(f"{place}: the record is damaged: {error}") from error
            yield Found(latest_ns, rank, place, record)

    def _time_ns(self, rank: int, record: Record) -> int:
        """Return the time of a record by the reference clock; 0 for a record without a time."""
        monotonic_ns = written_ns(record, self.headers[rank])
        return 0 if monotonic_ns is None else self.alignment.unix_ns(rank, monotonic_ns)


def _ignore(sentence: str) -> None:
    """Drop a sentence that the other pass reports."""


def _lines(
    path: Path,
    *,
    cut: Callable[[str], None] = _ignore,
    damaged: Callable[[str], None] = _ignore,
    skip: tuple[bytes, ...] = (),
) -> Iterator[tuple[int, bytes, Record | None]]:
    """Yield the number, the text and the record of each line of a rank's file.

    The record is None for a line that begins with one of `skip`, for a kind of record that this
    version does not know, and for a damaged line, about which `damaged` receives a sentence. `cut`
    receives one if the last line is incomplete. Raises UsageError for another version of the
    schema.
    """
    said: list[str] = []
    reader = LineReader(path, said.append)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    cut(f"{path}:{number}: the last line is cut; it may still be written")
                    return
                record = reader.take(b"" if skip and line.startswith(skip) else line)
                if reader.refused:
                    raise UsageError(said[-1])
                while said:
                    damaged(said.pop())
                yield number, line, record
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error

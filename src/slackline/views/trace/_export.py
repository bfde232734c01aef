"""Spans of a run for an exporter of OpenTelemetry: of a finished run, or while the job runs."""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from itertools import islice
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, TextIO

from slackline._distribution import install, version
from slackline.errors import UsageError
from slackline.history import Recording, RecordTail, files_of, read_all, telemetry_of
from slackline.records import FileHeader, file_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

    from slackline.views.trace._spans import Clocks, SpanMaker

__all__ = ["export_spans", "write_spans"]

_BATCH = 512
"""The number of spans that an exporter receives at a time."""

_PATIENCE = timedelta(seconds=30)
_SERVICE = "slackline"


def write_spans(recording: Recording, file: TextIO) -> int:
    """Write the spans of a finished run as OTLP JSON, an object a line; return their number.

    Times are those of one clock for all ranks. Raises UsageError for a damaged record, and if a
    library of the extra `opentelemetry` is missing.
    """
    try:
        from opentelemetry.exporter.otlp.json.file.trace_exporter import FileSpanExporter
    except ModuleNotFoundError:
        raise _missing() from None
    first = next(iter(recording.headers.values()))
    maker = _maker(_name_of(first), recording.alignment, _SERVICE, _PATIENCE)

    def spans() -> "Iterable[ReadableSpan]":
        for found in recording.records():
            try:
                yield from maker.take(found.record)
            except (TypeError, ValueError) as error:
                raise UsageError(f"{found.place}: the record is damaged: {error}") from error
        yield from maker.finish()

    return _hand_over(spans(), FileSpanExporter(stream=file))


def export_spans(
    directory: Path,
    exporter: "SpanExporter",
    *,
    run: str = "",
    service: str = _SERVICE,
    until: Event | None = None,
    interval: timedelta = timedelta(seconds=1),
    patience: timedelta = _PATIENCE,
    report: Callable[[str], None] | None = None,
) -> int:
    """Hand the spans of the ranks' files in `directory` to an exporter; return their number.

    Without `until` the call reads the files once. With `until` the call reads what ranks have added
    every `interval`, and once more after the event is set. Times are those of each rank's host.
    `run` identifies the run; by default the header of rank 0 does, and spans wait for that header.
    An operation waits for the end of its step, but for no longer than `patience`. `report` receives
    a sentence for each line that cannot be read; without it such a line raises UsageError.

    Raises UsageError if `directory` is not a directory, if there is no record of rank 0 and no
    `run`, if the extra `opentelemetry` is missing, and if the exporter refuses spans.
    Blocks; the exporter is neither flushed nor shut down.
    """
    feed = _Feed(telemetry_of(directory), exporter, run, service, patience, report or _refuse)
    if until is not None:
        while not until.wait(interval.total_seconds()):
            feed.update()
    feed.update()
    return feed.finish()


class _Feed:
    """The reader of a directory of telemetry, which may still grow, for one exporter."""

    def __init__(
        self,
        directory: Path,
        exporter: "SpanExporter",
        run: str,
        service: str,
        patience: timedelta,
        report: Callable[[str], None],
    ) -> None:
        self._directory, self._exporter = directory, exporter
        self._run, self._service, self._patience = run, service, patience
        self._report = report
        self._headers: dict[int, FileHeader] = {}
        self._ranks: dict[Path, int] = {}
        self._tails: dict[Path, RecordTail] = {}
        self._maker: SpanMaker | None = None
        self._count = 0

    def update(self) -> None:
        """Export the spans that have become complete with the records added so far."""
        if self._maker is None:
            self._maker = self._begin()
        if self._maker is None:
            return
        for path in files_of(self._directory):
            tail = self._tails.setdefault(path, RecordTail(path, self._report))
            self._count += _hand_over(self._spans(self._maker, path, tail), self._exporter)

    def finish(self) -> int:
        """Export the spans that are still held; return the number of all spans."""
        if self._maker is None:
            raise UsageError(
                f"{self._directory} has no record of rank 0, whose header identifies the run: give "
                "the run a name"
            )
        self._count += _hand_over(self._maker.finish(), self._exporter)
        return self._count

    def _begin(self) -> "SpanMaker | None":
        """Return the maker of the run's spans; None before the header of rank 0."""
        run, path = self._run, file_of(self._directory, 0)
        if not run and path.exists():
            header = next(read_all(path, self._report), None)
            run = _name_of(header) if isinstance(header, FileHeader) else ""
        clocks = _HostClocks(self._headers)
        return _maker(run, clocks, self._service, self._patience) if run else None

    def _spans(self, maker: "SpanMaker", path: Path, tail: RecordTail) -> "Iterable[ReadableSpan]":
        for record in tail.read():
            if isinstance(record, FileHeader):
                self._headers[record.rank] = record
                self._ranks.setdefault(path, record.rank)
            if record.rank != self._ranks[path]:
                raise UsageError(f"{path}: a record is of rank {record.rank}, the file is not")
            try:
                yield from maker.take(record)
            except (TypeError, ValueError) as error:
                raise UsageError(f"{path}: a record is damaged: {error}") from error


class _HostClocks:
    """The clock of each rank's host, as the header of its file gives it."""

    def __init__(self, headers: Mapping[int, FileHeader]) -> None:
        self._headers = headers

    def unix_ns(self, rank: int, monotonic_ns: int) -> int:
        """Return the Unix time of the rank's host at a monotonic time of that host."""
        header = self._headers[rank]
        return monotonic_ns - header.monotonic_ns + header.time_ns

    def from_unix(self, rank: int, time_ns: int) -> int:
        """Return the monotonic time of the rank's host at a Unix time of that host."""
        header = self._headers[rank]
        return time_ns - header.time_ns + header.monotonic_ns


def _maker(run: str, clocks: "Clocks", service: str, patience: timedelta) -> "SpanMaker":
    try:
        from slackline.views.trace._spans import SpanMaker
    except ModuleNotFoundError:
        raise _missing() from None
    return SpanMaker(run, clocks, service=service, patience=patience, version=version())


def _name_of(header: FileHeader) -> str:
    """Return the name of the run whose lowest rank has the header."""
    return f"{header.host}/{header.process}/{header.time_ns}"


def _hand_over(spans: "Iterable[ReadableSpan]", exporter: "SpanExporter") -> int:
    """Give spans to the exporter in batches; return their number."""
    from opentelemetry.sdk.trace.export import SpanExportResult

    rest, count = iter(spans), 0
    while batch := tuple(islice(rest, _BATCH)):
        if exporter.export(batch) is not SpanExportResult.SUCCESS:
            raise UsageError(
                f"{type(exporter).__name__} has refused {len(batch)} spans after {count}"
            )
        count += len(batch)
    return count


def _missing() -> UsageError:
    return UsageError(f"spans need the libraries of OpenTelemetry: {install('opentelemetry')}")


def _refuse(sentence: str) -> None:
    raise UsageError(sentence)

"""All events of a run, and the writer that the format of a trace needs."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import BinaryIO, Protocol

from slackline.causes import Watch
from slackline.errors import UsageError
from slackline.history import Found, Recording
from slackline.records import (
    Decision,
    Gap,
    GroupOpened,
    LinkReport,
    LinkVerdict,
    Operations,
    PipelineStep,
    StepSummary,
)
from slackline.views.trace._causes import cause_events
from slackline.views.trace._events import Event, Process
from slackline.views.trace._links import note_events, sample_events
from slackline.views.trace._operations import OperationEvents
from slackline.views.trace._pipeline import PipelineEvents
from slackline.views.trace._steps import StepEvents

__all__ = ["Totals", "TraceFormat", "events_of", "write_trace"]


_AFTERWARDS_NS = 2**62
"""A Unix time after all records."""


class TraceFormat(StrEnum):
    """A format that `write_trace` writes."""

    PERFETTO = "perfetto"
    """Perfetto's protobuf trace, which needs the extra `trace`."""
    CHROME = "chrome"
    """Chrome's Trace Event Format, in JSON."""


@dataclass(slots=True)
class Totals:
    """The number of parts of a trace, and of those for which a record was missing."""

    ranks: int = 0
    """The ranks, each with tracks of its own."""
    operations: int = 0
    """Operations that ended, on all ranks."""
    arrows: int = 0
    """Arrows between ranks, and from messages to instructions."""
    alone: int = 0
    """Operations without the record of another rank of the group, which have no arrow."""
    contradictions: int = 0
    """Collectives that one rank ended before another had posted them, by the compared clocks."""


class _Writer(Protocol):
    """A writer of events in one format."""

    def write(self, event: Event) -> None:
        """Write an event."""

    def close(self) -> None:
        """Write the end of the trace; the file stays open."""


def write_trace(
    recording: Recording, file: BinaryIO, form: TraceFormat = TraceFormat.PERFETTO
) -> Totals:
    """Write the trace of a run in the format `form` to a file, event by event.

    Raises UsageError if a record is damaged, or if the library that the format needs is missing.
    """
    writer = _writer(file, form, recording.start_ns)
    totals = Totals()
    for event in events_of(recording, totals):
        writer.write(event)
    writer.close()
    return totals


def events_of(recording: Recording, totals: Totals | None = None) -> Iterator[Event]:
    """Yield the events of all ranks, roughly in the order of their ends; count them in `totals`.

    The order is such that a slice precedes the slices that are nested in it, and an arrow's source
    its target. Raises UsageError that names file and line for a damaged record.
    """
    return _Conversion(recording, Totals() if totals is None else totals).events()


def _writer(file: BinaryIO, form: TraceFormat, start_ns: int) -> _Writer:
    match form:
        case TraceFormat.PERFETTO:
            from slackline.views.trace._perfetto import PerfettoWriter

            return PerfettoWriter(file, start_ns)
        case TraceFormat.CHROME:
            from slackline.views.trace._chrome import ChromeWriter

            return ChromeWriter(file, start_ns)


class _Conversion:
    """A conversion of a run's records to events, in one pass."""

    def __init__(self, recording: Recording, totals: Totals) -> None:
        flows = count(1)
        self._recording, self._totals = recording, totals
        self._operations = OperationEvents(recording.alignment, flows)
        self._steps = StepEvents(recording.unix_ns)
        self._pipeline = PipelineEvents(recording.unix_ns, recording.pipeline_ranks, flows)

    def events(self) -> Iterator[Event]:
        """Yield all events."""
        for rank, header in self._recording.headers.items():
            yield Process(rank, header.host, header.process)
        for found in self._recording.records():
            try:
                yield from self._take(found)
            except (TypeError, ValueError) as error:  # A UsageError is a ValueError too.
                raise UsageError(f"{found.place}: the record is damaged: {error}") from error
        yield from self._pipeline.finish()
        yield from self._operations.finish()
        # After all records have proved to be readable.
        yield from cause_events(Watch.recorded(self._recording.directory, _AFTERWARDS_NS))
        totals = self._totals
        totals.ranks = len(self._recording.headers)
        totals.operations = self._operations.count
        totals.arrows = self._operations.arrows + self._pipeline.arrows
        totals.alone = self._operations.alone
        totals.contradictions = self._operations.contradictions

    def _take(self, found: Found) -> Iterator[Event]:
        match found.record:
            case Operations():
                for operation in found.record.rows:
                    yield from self._operations.take(found.rank, operation)
            case GroupOpened():
                self._operations.open(found.record)
            case StepSummary():
                yield from self._steps.take(found.record)
            case PipelineStep():
                yield from self._pipeline.take(found.record)
            case LinkReport():
                yield from sample_events(found.record, self._recording.alignment)
            case LinkVerdict() | Decision() | Gap():
                yield from note_events(found.record, self._recording.unix_ns)
            case _:
                pass

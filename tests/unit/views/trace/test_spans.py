"""Tests of steps and operations as spans of OpenTelemetry."""

import io
import json
import threading
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from made_records import operations, write
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from trace_runs import MESSAGE, MS, UNIX, clock_offset, header, opened, pipeline, row, step

from slackline.errors import UsageError
from slackline.history import Recording
from slackline.records import encode, file_of
from slackline.views.trace import export_spans, write_spans


def spans_of(directory: Path, **options: timedelta) -> dict[tuple[int, str, int], ReadableSpan]:
    """Return the spans that are exported, by rank, name and number."""
    exporter = InMemorySpanExporter()
    count = export_spans(directory, exporter, **options)
    found = {name_of(span): span for span in exporter.get_finished_spans()}
    assert len(found) == count
    return found


def name_of(span: ReadableSpan) -> tuple[int, str, int]:
    facts = span.attributes or {}
    number = facts.get("slackline.step", facts.get("slackline.sequence"))
    return int(span.resource.attributes["slackline.rank"]), span.name, int(number)


def milliseconds(span: ReadableSpan) -> tuple[float, float]:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.start_time - UNIX) / MS, (span.end_time - UNIX) / MS


def write_two_ranks(directory: Path) -> None:
    for rank in range(2):
        write(directory, rank, header(rank), opened(rank))
        rows = [row(10, 20, waited_ms=3), row(110, 120, sequence=1)]
        write(directory, rank, operations(rank, *rows), step(rank, 0, 100, 100))


def test_an_operation_is_a_child_of_the_step_in_which_it_was_posted(tmp_path: Path) -> None:
    write_two_ranks(tmp_path)
    spans = spans_of(tmp_path)
    assert sorted(spans) == [
        (rank, name, number)
        for rank in range(2)
        for name, number in (("all_reduce", 0), ("all_reduce", 1), ("training step", 0))
    ]
    parent, child = spans[1, "training step", 0], spans[1, "all_reduce", 0]
    assert child.parent == parent.context
    assert child.context.trace_id == parent.context.trace_id
    assert parent.parent is None
    assert spans[1, "all_reduce", 1].parent is None
    assert milliseconds(parent) == (0, 100)
    assert milliseconds(child) == (10, 20)
    assert parent.attributes is not None
    assert parent.attributes["slackline.exposed_ns"] == 2 * MS
    assert child.attributes == {
        "slackline.collective": "3801848804/all_reduce/0/-1/0",
        "slackline.bytes": 4096,
        "slackline.sequence": 0,
        "slackline.waited_ns": 3 * MS,
        "slackline.plan": "direct",
        "slackline.rails": ("0",),
    }
    assert child.resource.attributes == {
        "service.name": "slackline",
        "service.instance.id": f"host0/100/{UNIX} rank 1",
        "host.name": "host1",
        "process.pid": 101,
        "slackline.rank": 1,
    }


def test_all_ranks_spans_of_a_collective_are_linked_in_one_trace(tmp_path: Path) -> None:
    write_two_ranks(tmp_path)
    spans = spans_of(tmp_path)
    for number in range(2):
        first, second = (spans[rank, "all_reduce", number] for rank in range(2))
        assert first.context.trace_id == second.context.trace_id
        assert first.context.span_id != second.context.span_id
        assert first.links == ()
        (link,) = second.links
        assert link.context == first.context
        assert link.attributes == {"slackline.rank": 0}
    traces = {span.context.trace_id for span in spans.values()}
    assert len(traces) == 2  # one of the step, one of the operation behind it


def test_numbers_depend_on_the_run_alone(tmp_path: Path) -> None:
    write_two_ranks(tmp_path)
    first, again = spans_of(tmp_path), spans_of(tmp_path)
    assert {name: span.context for name, span in first.items()} == {
        name: span.context for name, span in again.items()
    }
    other = InMemorySpanExporter()
    export_spans(tmp_path, other, run="another run")
    numbers = {span.context.span_id for span in other.get_finished_spans()}
    assert numbers.isdisjoint(span.context.span_id for span in first.values())


def test_both_sides_of_a_message_are_linked(tmp_path: Path) -> None:
    get = row(1, 9, collective=MESSAGE, receives=1, peer=1, tag=3)
    put = row(5, 8, collective=MESSAGE, peer=0, tag=3, failed=1)
    write(tmp_path, 0, header(0), opened(0), operations(0, get))
    write(tmp_path, 1, header(1), opened(1), operations(1, put))
    spans = spans_of(tmp_path)
    received, sent = spans[0, "recv", 0], spans[1, "send", 0]
    assert [link.context for link in sent.links] == [received.context]
    assert received.links == ()
    assert sent.status.status_code == StatusCode.ERROR
    assert received.status.status_code == StatusCode.UNSET


def test_a_pipeline_step_is_a_parent_too(tmp_path: Path) -> None:
    rows = operations(0, row(10, 20))
    write(tmp_path, 0, header(0), opened(0, ranks=1), pipeline(0, {"0F0": (0, 10)}), rows)
    spans = spans_of(tmp_path)
    parent = spans[0, "pipeline step", 0]
    assert milliseconds(parent) == (0, 100)
    assert spans[0, "all_reduce", 0].parent == parent.context


def test_an_operation_waits_for_its_step_until_patience_ends(tmp_path: Path) -> None:
    rows = operations(0, row(10, 20), row(30, 90, sequence=1))
    write(tmp_path, 0, header(0), opened(0, ranks=1), rows, step(0, 0, 100, 100))
    patient = spans_of(tmp_path, patience=timedelta(milliseconds=71))
    assert patient[0, "all_reduce", 0].parent == patient[0, "training step", 0].context
    hasty = spans_of(tmp_path, patience=timedelta(milliseconds=69))
    assert hasty[0, "all_reduce", 0].parent is None
    assert hasty[0, "all_reduce", 1].parent == hasty[0, "training step", 0].context


class Listener(SpanExporter):
    """An exporter that tells a test when a number of spans has come."""

    def __init__(self, expected: int) -> None:
        self.spans: list[ReadableSpan] = []
        self.enough = threading.Event()
        self._expected = expected

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += spans
        if len(self.spans) >= self._expected:
            self.enough.set()
        return SpanExportResult.SUCCESS


def test_a_directory_is_followed_while_ranks_write(tmp_path: Path) -> None:
    # Rank 1 writes first; its spans wait for the header of rank 0, which identifies the run.
    write(tmp_path, 1, header(1), opened(1), step(1, 0, 100, 100))
    listener, until, counts = Listener(2), threading.Event(), []
    options = {"until": until, "interval": timedelta(milliseconds=1)}
    follower = threading.Thread(
        target=lambda: counts.append(export_spans(tmp_path, listener, **options))
    )
    follower.start()
    try:
        line = encode(step(0, 0, 100, 100))
        write(tmp_path, 0, header(0), opened(0))
        with file_of(tmp_path, 0).open("a") as file:
            file.write(line[:20])
            file.flush()
            file.write(line[20:] + "\n")
        assert listener.enough.wait(60)
        write(tmp_path, 1, operations(1, row(10, 20), row(110, 120, sequence=1)))
    finally:
        until.set()
        follower.join(60)
    assert not follower.is_alive()
    assert counts == [4]
    assert sorted(map(name_of, listener.spans)) == [
        (0, "training step", 0),
        (1, "all_reduce", 0),
        (1, "all_reduce", 1),
        (1, "training step", 0),
    ]


def test_spans_that_an_exporter_refuses_are_an_error(tmp_path: Path) -> None:
    write_two_ranks(tmp_path)

    class Refusing(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            return SpanExportResult.FAILURE

    with pytest.raises(UsageError, match=r"^Refusing has refused 2 spans after 0$"):
        export_spans(tmp_path, Refusing())


def test_a_run_without_rank_0_needs_a_name(tmp_path: Path) -> None:
    write(tmp_path, 1, header(1), step(1, 0, 100, 100))
    with pytest.raises(UsageError, match="has no record of rank 0, whose header identifies the ru"):
        export_spans(tmp_path, InMemorySpanExporter())
    assert export_spans(tmp_path, InMemorySpanExporter(), run="mine") == 1


def test_a_damaged_line_is_refused_or_reported(tmp_path: Path) -> None:
    write_two_ranks(tmp_path)
    with file_of(tmp_path, 1).open("a") as file:
        file.write("{cut\n")
    told: list[str] = []
    assert export_spans(tmp_path, InMemorySpanExporter(), report=told.append) == 6
    (sentence,) = told
    assert sentence.startswith(f"{file_of(tmp_path, 1)}:5: the line is cut or damaged")
    with pytest.raises(UsageError, match=r"rank-00001\.jsonl:5: the line is cut or damaged"):
        export_spans(tmp_path, InMemorySpanExporter())


def test_damaged_records_are_told_with_their_file(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0), opened(0, ranks=1), operations(0, row(1, 2, collective=99)))
    told = r"rank-00000\.jsonl: a record is damaged: 99 is not a valid Collective"
    with pytest.raises(UsageError, match=told):
        export_spans(tmp_path, InMemorySpanExporter())
    file_of(tmp_path, 0).unlink()
    write(tmp_path, 0, header(0), opened(1, ranks=1))
    with pytest.raises(UsageError, match=r"rank-00000\.jsonl: a record is of rank 1, the file is"):
        export_spans(tmp_path, InMemorySpanExporter())


def test_a_finished_run_is_written_as_otlp_json_by_one_clock(tmp_path: Path) -> None:
    # The second host's monotonic clock is 3 ms ahead.
    write(tmp_path, 0, header(0, clock="a"), opened(0), operations(0, row(1, 9)))
    write(tmp_path, 1, header(1, clock="b"), opened(1), operations(1, row(8, 12)))
    write(tmp_path, 0, clock_offset(0, 1, offset_ms=3, error_ms=0.5))
    file = io.StringIO()
    assert write_spans(Recording(tmp_path, pytest.fail), file) == 2
    found = {}
    for line in file.getvalue().splitlines():
        for each in json.loads(line)["resourceSpans"]:
            facts = {fact["key"]: fact["value"] for fact in each["resource"]["attributes"]}
            (scope,) = each["scopeSpans"]
            assert scope["scope"]["name"] == "slackline"
            (span,) = scope["spans"]
            found[facts["host.name"]["stringValue"]] = span
    assert sorted(found) == ["host0", "host1"]
    first, second = found["host0"], found["host1"]
    assert second["startTimeUnixNano"] == str(UNIX + 5 * MS)
    assert second["endTimeUnixNano"] == str(UNIX + 9 * MS)
    assert first["traceId"] == second["traceId"]
    assert [link["spanId"] for link in second["links"]] == [first["spanId"]]
    assert len(first["traceId"]) == 32
    assert len(first["spanId"]) == 16

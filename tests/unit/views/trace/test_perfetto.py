"""Tests of Perfetto's traces, read back with Perfetto's own schema."""

import io
import shutil
from pathlib import Path
from typing import Any

import pytest
from made_records import operations, write
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto
from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
from trace_runs import MS, UNIX, header, opened, row, write_everything

from slackline.history import Recording
from slackline.views.trace import Process, Slice, TraceFormat, Track, events_of, write_trace
from slackline.views.trace._perfetto import PerfettoWriter

BEGIN, END = proto.TrackEvent.TYPE_SLICE_BEGIN, proto.TrackEvent.TYPE_SLICE_END


def packets(directory: Path) -> list[Any]:
    file = io.BytesIO()
    write_trace(Recording(directory, pytest.fail), file)
    return list(proto.Trace.FromString(file.getvalue()).packet)


class Names:
    """The interned names of each sequence, which a packet may use from its statement on."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, str, int], str] = {}

    def take(self, packet: Any) -> None:
        for field in ("event_names", "event_categories", "debug_annotation_names"):
            for entry in getattr(packet.interned_data, field):
                place = (packet.trusted_packet_sequence_id, field, entry.iid)
                assert entry.iid > 0
                assert place not in self.known
                self.known[place] = entry.name

    def name(self, packet: Any, field: str, number: int) -> str:
        assert packet.sequence_flags & proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        return self.known[packet.trusted_packet_sequence_id, field, number]


@pytest.fixture
def run(tmp_path: Path) -> list[Any]:
    write_everything(tmp_path)
    return packets(tmp_path)


def test_each_rank_has_a_sequence_that_begins_with_cleared_state(run: list[Any]) -> None:
    clocks, *rest = run
    assert clocks.trusted_packet_sequence_id == 1
    assert {each.clock_id: each.timestamp for each in clocks.clock_snapshot.clocks} == {
        6: UNIX,
        1: UNIX,
    }
    seen: set[int] = set()
    for packet in rest:
        sequence = packet.trusted_packet_sequence_id
        first = sequence not in seen
        assert packet.first_packet_on_sequence == first
        assert bool(packet.sequence_flags & 1) == first
        seen.add(sequence)
    assert seen == {2, 3}


def test_each_rank_is_a_process_with_its_tracks(run: list[Any]) -> None:
    described = [each.track_descriptor for each in run if each.HasField("track_descriptor")]
    processes = {each.uuid: each.process for each in described if each.HasField("process")}
    assert [(each.pid, each.process_name) for each in processes.values()] == [
        (1, "rank 0 on host0"),
        (2, "rank 1 on host1"),
    ]
    assert [list(each.process_labels) for each in processes.values()] == [
        ["host0, pid 100"],
        ["host1, pid 101"],
    ]
    tracks = [each for each in described if not each.HasField("process")]
    assert len({each.uuid for each in described}) == len(described)
    first = {each.name for each in tracks if processes[each.parent_uuid].pid == 1}
    assert first == {
        "training",
        "gradients",
        "group 0 (ranks 0-1)",
        "waits, group 0 (ranks 0-1)",
        "pipeline",
        "messages",
        "to rank 1, rail 0: rate out",
        "to rank 1, rail 0: rate in",
        "to rank 1, rail 0: round trip",
        "to rank 1, rail 0: queued",
    }
    counters = {each.name: each.counter for each in tracks if each.HasField("counter")}
    assert len(counters) == 4
    assert counters["to rank 1, rail 0: rate out"].unit_name == "bit/s"
    queued = counters["to rank 1, rail 0: queued"]
    assert queued.unit == proto.CounterDescriptor.UNIT_SIZE_BYTES


def test_slices_nest_and_end_on_every_track(run: list[Any]) -> None:
    described: set[int] = set()
    tracks: dict[int, list[Any]] = {}
    for packet in run:
        described.add(packet.track_descriptor.uuid)
        if packet.HasField("track_event"):
            assert packet.track_event.track_uuid in described
            tracks.setdefault(packet.track_event.track_uuid, []).append(packet)
    for events in tracks.values():
        ends: list[int] = []
        # A viewer sorts by time and keeps the order of the file among equal times.
        for place, packet in enumerate(sorted(events, key=lambda each: each.timestamp)):
            if packet.track_event.type == BEGIN:
                end = end_of(events, packet)
                assert all(end <= outer for outer in ends), place
                ends.append(end)
            elif packet.track_event.type == END:
                assert ends.pop() == packet.timestamp
        assert ends == []


def end_of(events: list[Any], begin: Any) -> int:
    """Return the time of the end that follows a begin in the file."""
    after = next(place for place, each in enumerate(events) if each is begin) + 1
    assert events[after].track_event.type == END
    return int(events[after].timestamp)


def test_names_are_interned_before_they_are_used(run: list[Any]) -> None:
    names, found = Names(), []
    for packet in run:
        names.take(packet)
        event = packet.track_event
        if event.type != BEGIN:
            continue
        (category,) = event.category_iids
        arguments = {
            names.name(packet, "debug_annotation_names", each.name_iid): each.int_value
            for each in event.debug_annotations
        }
        found.append(
            (
                names.name(packet, "event_names", event.name_iid),
                names.name(packet, "event_categories", category),
                packet.timestamp - UNIX,
                arguments.get("bytes", 0),
            )
        )
    assert ("all_reduce", "operation", 6 * MS, 4096) in found
    assert ("transfer", "wait", 6 * MS, 0) in found
    assert ("forward", "training", 10 * MS, 0) in found
    assert len(found) > 20


def test_slices_have_the_times_of_the_run(run: list[Any], tmp_path: Path) -> None:
    events = [each for each in run if each.track_event.type in (BEGIN, END)]
    assert [each.timestamp for each in events] == [
        time_ns
        for each in events_of(Recording(tmp_path, pytest.fail))
        if isinstance(each, Slice)
        for time_ns in (each.begin_ns, each.end_ns)
    ]


def test_names_beyond_the_limit_are_written_out() -> None:
    file = io.BytesIO()
    writer = PerfettoWriter(file, UNIX)
    writer.write(Process(0, "host0", 100))
    for number in range(4100):
        track = Track(0, "track")
        writer.write(
            Slice(track=track, name=f"n{number}", category="c", begin_ns=UNIX, end_ns=UNIX)
        )
    begins = [
        each.track_event
        for each in proto.Trace.FromString(file.getvalue()).packet
        if each.track_event.type == BEGIN
    ]
    assert [each.name for each in begins if each.name] == ["n4096", "n4097", "n4098", "n4099"]
    assert [each.name_iid for each in begins if not each.name] == list(range(1, 4097))


def test_every_arrow_has_one_beginning_and_one_later_end(run: list[Any]) -> None:
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for packet in run:
        for flow in packet.track_event.flow_ids:
            assert flow not in begins
            begins[flow] = packet.timestamp
        for flow in packet.track_event.terminating_flow_ids:
            assert flow not in ends
            ends[flow] = packet.timestamp
    assert begins.keys() == ends.keys()
    assert len(begins) == 5
    assert all(begins[flow] <= ends[flow] for flow in begins)


def test_counters_have_the_values_of_the_reports(run: list[Any]) -> None:
    names = {each.track_descriptor.uuid: each.track_descriptor.name for each in run}
    values = {
        names[each.track_event.track_uuid]: each.track_event.counter_value
        for each in run
        if each.track_event.type == proto.TrackEvent.TYPE_COUNTER
    }
    assert values == {
        "to rank 1, rail 0: rate out": 200_000_000,
        "to rank 1, rail 0: rate in": 400_000_000,
        "to rank 1, rail 0: round trip": 200_000,
        "to rank 1, rail 0: queued": 77,
    }


def test_packets_are_written_as_they_are_made(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0), opened(0, ranks=1))
    rows = [row(2 * k, 2 * k + 1, sequence=k) for k in range(2000)]
    for first in range(0, 2000, 100):
        write(tmp_path, 0, operations(0, *rows[first : first + 100]))
    sizes: list[int] = []

    class File(io.BytesIO):
        def write(self, data: Any) -> int:
            sizes.append(len(data))
            return super().write(data)

    file = File()
    write_trace(Recording(tmp_path, pytest.fail), file, TraceFormat.PERFETTO)
    assert len(sizes) == len(proto.Trace.FromString(file.getvalue()).packet) > 4000
    assert max(sizes) < 500


@pytest.mark.skipif(
    shutil.which("trace_processor_shell") is None,
    reason="Perfetto's trace_processor_shell is not installed; no package has the program",
)
def test_perfetto_s_trace_processor_reads_the_trace(tmp_path: Path) -> None:
    write_everything(tmp_path)
    file = tmp_path / "run.pftrace"
    with file.open("wb") as output:
        write_trace(Recording(tmp_path, pytest.fail), output)
    config = TraceProcessorConfig(bin_path=shutil.which("trace_processor_shell"))
    with TraceProcessor(trace=str(file), config=config) as processor:
        (slices,) = processor.query("select count(*) as n, min(dur) as shortest from slice")
        (flows,) = processor.query("select count(*) as n from flow")
        (errors,) = processor.query(
            "select coalesce(sum(value), 0) as n from stats where severity = 'error'"
        )
    assert slices.n > 20
    assert slices.shortest >= 0
    assert flows.n == 5
    assert errors.n == 0

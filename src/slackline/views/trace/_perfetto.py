"""The writer of Perfetto's traces: a stream of packets, each written as soon as it is made.

Each rank has a sequence of packets. Names that repeat are interned: the first packet with a name
states its number, and later packets of the sequence have the number alone.
"""

from typing import Any, BinaryIO

from slackline._distribution import install
from slackline.errors import UsageError
from slackline.views.trace._events import Event, Instant, Process, Sample, Slice, Track, Value

__all__ = ["PerfettoWriter"]

_MOST_NAMES = 4096
"""The number of names of a kind that a sequence interns; further names are written out."""

_CLEARED, _NEEDED = 1, 2
"""The flags SEQ_INCREMENTAL_STATE_CLEARED and SEQ_NEEDS_INCREMENTAL_STATE of a packet."""

_BOOT_TIME, _REAL_TIME = 6, 1
"""The numbers of the clock of timestamps and of Unix time, which have equal values here."""


class PerfettoWriter:
    """A writer of events as packets of a Perfetto trace.

    A rank is shown as the process with the number `rank` + 1, since processes of different hosts
    may have the same number, and 0 is no process of a user.
    """

    def __init__(self, file: BinaryIO, start_ns: int) -> None:
        """Write to `file` the packet that compares the clocks at the time `start_ns`.

        Raises UsageError if the library perfetto is not installed.
        """
        try:
            from perfetto.protos.perfetto.trace import perfetto_trace_pb2
            from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder
        except ModuleNotFoundError:
            raise UsageError(
                f"traces for Perfetto need the library perfetto: {install('trace')}"
            ) from None
        self._proto: Any = perfetto_trace_pb2
        self._builder: Any = StreamingTraceProtoBuilder(file)
        self._tracks: dict[Track, int] = {}
        self._processes: dict[int, int] = {}
        self._sequences: dict[int, _Sequence] = {}
        self._uuids = 0
        packet = self._builder.create_packet()
        packet.trusted_packet_sequence_id = 1
        for clock in (_BOOT_TIME, _REAL_TIME):
            packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=start_ns)
        self._builder.write_packet(packet)

    def write(self, event: Event) -> None:
        """Write the packets of an event."""
        match event:
            case Process():
                self._process(event)
            case Slice():
                kind = self._proto.TrackEvent.TYPE_SLICE_BEGIN
                packet = self._event(event.track, kind, event.begin_ns)
                self._describe(packet, event)
                packet.track_event.flow_ids.extend(event.flows_out)
                packet.track_event.terminating_flow_ids.extend(event.flows_in)
                self._builder.write_packet(packet)
                kind = self._proto.TrackEvent.TYPE_SLICE_END
                self._builder.write_packet(self._event(event.track, kind, event.end_ns))
            case Instant():
                kind = self._proto.TrackEvent.TYPE_INSTANT
                packet = self._event(event.track, kind, event.time_ns)
                self._describe(packet, event)
                self._builder.write_packet(packet)
            case Sample():
                kind = self._proto.TrackEvent.TYPE_COUNTER
                packet = self._event(event.track, kind, event.time_ns)
                packet.track_event.counter_value = event.value
                self._builder.write_packet(packet)

    def close(self) -> None:
        """Do nothing: a trace of packets has no end of its own."""

    def _process(self, process: Process) -> None:
        self._uuids += 1
        self._processes[process.rank] = self._uuids
        packet = self._packet(process.rank)
        described = packet.track_descriptor
        described.uuid = self._uuids
        described.process.pid = process.rank + 1
        described.process.process_name = f"rank {process.rank} on {process.host}"
        described.process.process_labels.append(f"{process.host}, pid {process.pid}")
        self._builder.write_packet(packet)

    def _event(self, track: Track, kind: int, time_ns: int) -> Any:
        """Return a packet with an event on a track, which is described before its first event."""
        uuid = self._tracks.get(track)
        if uuid is None:
            uuid = self._describe_track(track)
        packet = self._packet(track.rank)
        packet.timestamp = time_ns
        packet.track_event.type = kind
        packet.track_event.track_uuid = uuid
        return packet

    def _describe_track(self, track: Track) -> int:
        self._uuids += 1
        uuid = self._tracks[track] = self._uuids
        packet = self._packet(track.rank)
        described = packet.track_descriptor
        described.uuid = uuid
        described.parent_uuid = self._processes[track.rank]
        described.name = track.name
        if track.unit == "ns":
            described.counter.unit = self._proto.CounterDescriptor.UNIT_TIME_NS
        elif track.unit == "bytes":
            described.counter.unit = self._proto.CounterDescriptor.UNIT_SIZE_BYTES
        elif track.unit:
            described.counter.unit_name = track.unit
        self._builder.write_packet(packet)
        return uuid

    def _packet(self, rank: int) -> Any:
        """Return a new packet of the rank's sequence."""
        packet = self._builder.create_packet()
        packet.trusted_packet_sequence_id = rank + 2  # 1 is the sequence of the clocks.
        packet.sequence_flags = _NEEDED
        if rank not in self._sequences:
            self._sequences[rank] = _Sequence()
            packet.sequence_flags = _CLEARED | _NEEDED
            packet.first_packet_on_sequence = True
        return packet

    def _describe(self, packet: Any, event: Slice | Instant) -> None:
        """Add the name, the category and the arguments of an event to its packet."""
        sequence = self._sequences[event.track.rank]
        made = packet.track_event
        if number := sequence.number(packet, "event_names", event.name):
            made.name_iid = number
        else:
            made.name = event.name
        if number := sequence.number(packet, "event_categories", event.category):
            made.category_iids.append(number)
        else:
            made.categories.append(event.category)
        for name, value in event.arguments.items():
            argument = made.debug_annotations.add()
            if number := sequence.number(packet, "debug_annotation_names", name):
                argument.name_iid = number
            else:
                argument.name = name
            _set(argument, value)


class _Sequence:
    """The names that a sequence of packets has interned."""

    def __init__(self) -> None:
        self._numbers: dict[str, dict[str, int]] = {}

    def number(self, packet: Any, kind: str, name: str) -> int:
        """Return the number of a name, which the packet states if it is new; 0 without room.

        `kind` is the field of the interned data to which the name belongs; each has its numbers.
        """
        numbers = self._numbers.setdefault(kind, {})
        number = numbers.get(name, 0)
        if not number and len(numbers) < _MOST_NAMES:
            number = numbers[name] = len(numbers) + 1
            getattr(packet.interned_data, kind).add(iid=number, name=name)
        return number


def _set(argument: Any, value: Value) -> None:
    """Set the value of an argument."""
    if isinstance(value, str):
        argument.string_value = value
    elif isinstance(value, float):
        argument.double_value = value
    else:
        argument.int_value = value

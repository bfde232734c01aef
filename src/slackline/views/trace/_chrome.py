"""The writer of Chrome's Trace Event Format: a JSON object with a list of events.

Times are microseconds from the first record of the run, whose Unix time the object states: a number
of JSON has too few digits for the nanoseconds of Unix time.
"""

import json
from collections.abc import Mapping
from typing import Any, BinaryIO

from slackline.views.trace._events import Event, Instant, Process, Sample, Slice, Track

__all__ = ["ChromeWriter"]


class ChromeWriter:
    """A writer of events as lines of a JSON object. A rank is the process `rank` + 1."""

    def __init__(self, file: BinaryIO, start_ns: int) -> None:
        """Write the beginning of the object to `file`; times count from `start_ns`."""
        self._file, self._start_ns = file, start_ns
        self._tracks: dict[Track, int] = {}
        self._separator = ""
        head = {"displayTimeUnit": "ns", "otherData": {"start_unix_ns": str(start_ns)}}
        file.write(json.dumps(head)[:-1].encode() + b', "traceEvents": [')

    def write(self, event: Event) -> None:
        """Write the lines of an event."""
        match event:
            case Process():
                name = f"rank {event.rank} on {event.host}"
                labels = f"{event.host}, pid {event.pid}"
                self._process(event.rank, "process_name", {"name": name})
                self._process(event.rank, "process_labels", {"labels": labels})
                self._process(event.rank, "process_sort_index", {"sort_index": event.rank})
            case Slice():
                self._slice(event)
            case Instant():
                self._write(
                    self._event("i", event.track, event.time_ns, event.name),
                    cat=event.category,
                    s="t",
                    args=dict(event.arguments),
                )
            case Sample():
                self._write(
                    self._event("C", event.track, event.time_ns, event.track.name),
                    cat="link",
                    args={event.track.unit: event.value},
                )

    def close(self) -> None:
        """Write the end of the object; the file stays open."""
        self._file.write(b"\n]}\n")

    def _slice(self, event: Slice) -> None:
        self._write(
            self._event("X", event.track, event.begin_ns, event.name),
            dur=(event.end_ns - event.begin_ns) / 1000,
            cat=event.category,
            args=dict(event.arguments),
        )
        # An arrow belongs to the slice of the track that its time is in: the innermost one.
        for kind, flows in (("s", event.flows_out), ("f", event.flows_in)):
            for flow in flows:
                arrow = self._event(kind, event.track, event.begin_ns, "arrow")
                self._write(arrow, cat="arrow", id=flow, **({"bp": "e"} if kind == "f" else {}))

    def _process(self, rank: int, name: str, arguments: Mapping[str, str | int]) -> None:
        self._write({"ph": "M", "pid": rank + 1, "name": name}, args=dict(arguments))

    def _event(self, kind: str, track: Track, time_ns: int, name: str) -> dict[str, Any]:
        """Return the fields that all events of a track have."""
        return {
            "ph": kind,
            "pid": track.rank + 1,
            "tid": self._thread(track),
            "ts": (time_ns - self._start_ns) / 1000,
            "name": name,
        }

    def _thread(self, track: Track) -> int:
        """Return the number of a track, which is named before its first event."""
        if (known := self._tracks.get(track)) is not None:
            return known
        number = self._tracks[track] = len(self._tracks) + 1
        if not track.unit:
            lane = f" ({track.lane + 1})" if track.lane else ""
            named = {"ph": "M", "pid": track.rank + 1, "tid": number, "name": "thread_name"}
            self._write(named, args={"name": track.name + lane})
        return number

    def _write(self, event: dict[str, Any], **further: Any) -> None:
        text = json.dumps({**event, **further}, separators=(",", ":"))
        self._file.write(f"{self._separator}\n{text}".encode())
        self._separator = ","

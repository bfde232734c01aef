"""A ring NIC, and a second NIC that repeats some operations and must give bit-identical results."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby

from slackline.circuit.device._frames import Outbox
from slackline.circuit.device._interface import RingDevice
from slackline.circuit.device._operation import RingOperation, RingPlace
from slackline.errors import InternalError
from slackline.wire import FIELDS, HEADER_BYTES, FrameFlag, Header, decode

__all__ = ["CheckedRing", "Checks"]

_log = logging.getLogger("slackline.circuit")

_TAG, _CHUNK, _FLAGS = (
    next(slice(each.offset, each.offset + each.width) for each in FIELDS if each.name == name)
    for name in ("tag", "chunk", "flags")
)
_LINE = 64
_FRAMES_AT_ONCE = 8
"""The number of frames that the checking device gets at a time; a check can be ended between two
such batches."""


class Checks:
    """A sampler that selects the operations to check; all NICs of a process share one sampler."""

    def __init__(self, every: int, most_bytes: int = 4 << 20) -> None:
        """Choose every `every`-th operation for a check.

        If that operation is longer than `most_bytes`, or its NIC is still checking another
        operation, the next operation that can be checked is checked instead.
        """
        self._every, self._most_bytes = every, most_bytes
        self._lock = threading.Lock()
        self._posted = self._due = self._done = 0
        self._owed = False

    def take(self, operation: RingOperation, free: bool) -> bool:
        """Count an operation; return whether to check it. `free`: the NIC is not in a check."""
        with self._lock:
            self._posted += 1
            if self._posted % self._every == 0:
                self._due += 1
                self._owed = True
            chosen = self._owed and free and operation.total <= self._most_bytes
            self._owed &= not chosen
            return chosen

    def agreed(self) -> None:
        """Count a check in which the results of both devices were bit-identical."""
        with self._lock:
            self._done += 1

    def counters(self) -> Mapping[str, int]:
        """Return the number of checks due, and the number done with bit-identical results."""
        with self._lock:
            return {"device_checks_due": self._due, "device_checks_done": self._done}


@dataclass
class _Record:
    """The inputs and the results of one operation that is to be checked."""

    operation: RingOperation
    own: bytes
    frames_in: list[bytes] = field(default_factory=list)
    frames_out: list[bytes] = field(default_factory=list)
    total: bytes = b""


class CheckedRing(Outbox):
    """A RingDevice that forwards to `device`, and repeats some operations on a second device.

    When a sampled operation is completed, a device from `open_other` repeats the operation on
    copies of the memory, with the same frames, in a separate thread. Both devices must give
    bit-identical frames and sums; only the sequence numbers of the frames may differ, because
    sequence numbers depend on other operations. If the results differ, or the second device fails,
    the next method call on this object raises InternalError. A check changes neither the results of
    `device` nor their timing.
    """

    def __init__(
        self,
        device: RingDevice,
        open_other: Callable[[], RingDevice],
        place: RingPlace,
        checks: Checks,
    ) -> None:
        super().__init__()
        self.options = device.options
        self._device, self._checks = device, checks
        self._again = _Again(open_other, place, checks)
        self._record: _Record | None = None

    def post(self, operation: RingOperation) -> None:
        """Post an operation; copy the data of an operation to be checked: see RingDevice."""
        self._again.raise_if_failed()
        own = None
        free = self._record is None and self._again.idle
        if self._checks.take(operation, free):
            # The copy is made first, because the sum may overwrite this rank's contribution.
            own = ctypes.string_at(operation.source, operation.total)
        self._device.post(operation)
        if own is not None:
            self._record = _Record(operation, own)

    def receive(self, frame: bytes) -> None:
        """Take a frame from the predecessor; record a frame that a check needs: see RingDevice."""
        self._device.receive(frame)
        if self._record is not None and _belongs(frame, self._record.operation):
            self._record.frames_in.append(frame)

    def advance(self) -> None:
        """Run the device; raise InternalError if a check has failed: see RingDevice."""
        self._again.raise_if_failed()
        self._device.advance()

    def frames(self) -> list[bytes]:
        """Return the frames for the successor: see RingDevice."""
        self._collect()
        return super().frames()

    def completed(self) -> list[tuple[int, int]]:
        """Return completed operations; start the check of a recorded operation: see RingDevice."""
        self._collect()
        found = self._device.completed()
        record = self._record
        if record is not None and record.operation.key in found:
            operation = record.operation
            record.total = ctypes.string_at(operation.target, operation.total)
            self._again.check(record)
            self._record = None
        return found

    def counters(self) -> Mapping[str, int]:
        """Return the counters of the device; those of the checks are counted by Checks."""
        return self._device.counters()

    def close(self) -> None:
        """Close the device: see RingDevice. A check that is still running is abandoned."""
        self._device.close()
        self._again.close()

    def _collect(self) -> None:
        found = self._device.frames()
        if self._record is not None:
            operation = self._record.operation
            self._record.frames_out += [each for each in found if _belongs(each, operation)]
        self._out += found


class _Again:
    """A thread that opens a second device, repeats operations on that device, and closes it."""

    def __init__(
        self, open_device: Callable[[], RingDevice], place: RingPlace, checks: Checks
    ) -> None:
        self._open_device, self._place, self._checks = open_device, place, checks
        self._changed = threading.Condition()
        self._record: _Record | None = None
        self._closed = False
        self._failure: InternalError | None = None
        self._told = False
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        return self._record is None

    def check(self, record: _Record) -> None:
        """Hand the record of an operation to the worker thread, which must be idle."""
        with self._changed:
            self._record = record
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="slackline-check", daemon=True)
            self._thread.start()

    def raise_if_failed(self) -> None:
        if self._failure is not None:
            self._told = True
            raise self._failure

    def close(self) -> None:
        """End the thread; block until the device has finished the present batch of frames."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
        if self._failure is not None and not self._told:
            self._told = True
            _log.error("%s", self._failure)

    def _run(self) -> None:
        device: RingDevice | None = None
        try:
            while (record := self._next()) is not None:
                tag = record.operation.tag
                try:
                    device = device or self._open_device()
                    found = self._difference(device, record)
                except Exception as error:
                    found = f"could not repeat {_name(record.operation)}: {error}"
                if found:
                    why = f"the NIC that checks rank {self._place.rank} {found}"
                    self._failure = InternalError(why, rank=self._place.rank, tag=tag)
                    return
                self._record = None
        finally:
            if device is not None:
                device.close()

    def _next(self) -> _Record | None:
        with self._changed:
            while self._record is None and not self._closed:
                self._changed.wait()
            return None if self._closed else self._record

    def _difference(self, device: RingDevice, record: _Record) -> str:
        """Repeat an operation; return a phrase for the first difference, or an empty string.

        The string is empty if both devices agree, or if the device was closed before the end.
        """
        wanted = record.operation
        source = _Memory(wanted.source, wanted.total, record.own)
        target = source
        if wanted.target != wanted.source:
            target = _Memory(wanted.target, wanted.total)
        device.post(replace(wanted, source=source.address, target=target.address))
        sent: list[bytes] = []
        for frames in _batches(record.frames_in):
            for frame in frames:
                device.receive(frame)
            device.advance()
            sent += device.frames()
            if self._closed:
                return ""
        place = f"of {_name(wanted)} at offset"
        if (found := _different(record.frames_out, sent)) is not None:
            return f"sends another frame {place} {found.offset}"
        if device.completed() != [wanted.key]:
            return f"does not complete {_name(wanted)}"
        if target.read() != record.total:
            pairs = zip(target.read(), record.total, strict=True)
            offset = next(at for at, (one, other) in enumerate(pairs) if one != other)
            return f"has another sum {place} {offset}"
        self._checks.agreed()
        return ""


class _Memory:
    """A buffer of `size` bytes, at the same offset in a 64-byte cache line as address `like`."""

    def __init__(self, like: int, size: int, content: bytes = b"") -> None:
        self._buffer, self._size = ctypes.create_string_buffer(size + _LINE), size
        start = ctypes.addressof(self._buffer)
        self.address = start + (like - start) % _LINE
        ctypes.memmove(self.address, content, len(content))

    def read(self) -> bytes:
        return ctypes.string_at(self.address, self._size)


def _name(operation: RingOperation) -> str:
    return f"chunk {operation.chunk} of operation 0x{operation.tag:X}"


def _belongs(frame: bytes, operation: RingOperation) -> bool:
    tag, chunk = (int.from_bytes(frame[where], "little") for where in (_TAG, _CHUNK))
    return (tag, chunk) == operation.key


def _batches(frames: list[bytes]) -> Iterator[list[bytes]]:
    """Yield recorded frames in batches of one kind each, partial or final.

    A final sum may come only after this rank has added its data to the partial sum, so no batch
    mixes the two kinds. The first batch is empty, because the rank that starts an operation sends
    before it receives.
    """
    yield []
    for _, alike in groupby(frames, lambda frame: frame[_FLAGS]):
        several = list(alike)
        for start in range(0, len(several), _FRAMES_AT_ONCE):
            yield several[start : start + _FRAMES_AT_ONCE]


def _different(frames: list[bytes], others: list[bytes]) -> Header | None:
    """Return the header of the first frame that is not in both lists; frame numbers are ignored."""
    ours, theirs = _by_place(frames), _by_place(others)
    for place in sorted(ours.keys() | theirs.keys()):
        if ours.get(place) != theirs.get(place):
            return (ours.get(place) or theirs[place])[0]
    return None


def _by_place(frames: list[bytes]) -> dict[tuple[int, FrameFlag, int], tuple[Header, bytes]]:
    """Map (offset, kind, count among frames of that offset and kind) to the frame's content."""
    found: dict[tuple[int, FrameFlag, int], tuple[Header, bytes]] = {}
    for frame in frames:
        header = replace(decode(frame), sequence=0)
        count = 0
        while (place := (header.offset, header.flags, count)) in found:
            count += 1
        found[place] = header, frame[HEADER_BYTES:]
    return found

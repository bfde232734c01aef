"""A simulated ring NIC within a ring: the cycles at which frames leave, and simulation speed."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from slackline.circuit import (
    RING_STREAMS,
    QueueDriver,
    RingCircuit,
    RingOperation,
    RingOptions,
    RingPlace,
    RingTwin,
    Simulation,
    cached_ring,
)
from slackline.wire import HEADER_BYTES, DType, FrameFlag, FrameKind, Header, decode, encode

_PLACE = RingPlace(rank=1, ranks=3, job=7, epoch=3, plan_id=4)
_MIDDLE = replace(_PLACE, ranks=4)
"""The place of rank 1 of 4, which passes sums on; rank 1 of 3 passes none on."""
_PARTIAL, _FINAL = FrameFlag.PARTIAL, FrameFlag(0)
_LOOK = 16
"""The cycles between two checks for sent frames: an ACK's round trip."""


@dataclass(frozen=True, kw_only=True)
class RingRun:
    """The result of a run; cycles are counted from the first beat of input."""

    first: int
    """The cycle of the first beat of output."""
    cycles_per_beat: float
    """The cycles for each beat of the output stream, headers included."""


class RingBench:
    """A simulated ring NIC whose sums are compared with the sums of its twin, a model in Python."""

    def __init__(self, options: RingOptions) -> None:
        self.options = options
        self._verilog = cached_ring(options)
        self._simulation = Simulation(self._verilog)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._simulation.close()

    def run(self, frames: int, payload: int, *, latency: int = 0) -> RingRun:
        """Send a message of `frames` frames at a beat a cycle, and return when the frames leave.

        The host's memory answers after `latency` cycles.
        """
        simulation = self._simulation
        simulation.memory_latency(latency)
        driver = self._opened(_PLACE)
        message = _message(frames, payload)
        twin = RingTwin(self.options, _PLACE)
        twin.post(message.operation)
        for frame in message.frames:
            twin.receive(frame)
        self._post(driver, message)
        start = simulation.step(0)
        wires = _Wires(simulation, self.options.slots)
        found = wires.carry(message.frames, frames)
        driver.close()
        self._take_back(message)
        _compare(found, twin.frames())
        first, last = found[0][1], found[-1][2]
        return RingRun(
            first=first - start, cycles_per_beat=(last - first + 1) / self._beats(frames, payload)
        )

    def run_both(self, frames: int, payload: int) -> float:
        """Return the cycles for each beat of output while partial sums and final sums alternate.

        The partial sums of one message are added while the final sums of another message pass. Rank
        1 of 4 also stores those final sums, to which it has contributed before.
        """
        self._simulation.memory_latency(0)
        driver = self._opened(_MIDDLE)
        before, now = _message(frames, payload, tag=8), _message(frames, payload)
        finals = [_as_final(frame) for frame in before.frames]
        partials = [_numbered(frame, frames) for frame in now.frames]
        mixed = [frame for pair in zip(partials, finals, strict=True) for frame in pair]
        twin = RingTwin(self.options, _MIDDLE)
        elsewhere = np.empty(before.own.nbytes, np.uint8)
        for message in (before, now):
            twin.post(replace(message.operation, target=elsewhere.ctypes.data))
        for frame in before.frames + mixed:
            twin.receive(frame)
        for message in (before, now):
            self._post(driver, message)
        wires = _Wires(self._simulation, self.options.slots)
        found = wires.carry(before.frames, frames)
        mixed_found = wires.carry(mixed, 2 * frames)
        self._simulation.settle(quiet=128, cycles=100_000)
        driver.close()
        for message in (before, now):
            self._take_back(message)
        _compare(found + mixed_found, twin.frames())
        if before.own.tobytes() != b"".join(frame[HEADER_BYTES:] for frame in finals):
            raise AssertionError("the circuit stored sums that differ from the received ones")
        cycles = mixed_found[-1][2] - mixed_found[0][1] + 1
        return cycles / self._beats(2 * frames, payload)

    def _opened(self, place: RingPlace) -> QueueDriver:
        driver = QueueDriver(self._simulation, self.options)
        registers = {
            "job": place.job,
            "epoch": place.epoch,
            "plan": place.plan_id,
            "rank": place.rank,
            "ranks": place.ranks,
            "timeout": 1 << 30,
        }
        for name, value in (("control", 0), *registers.items(), ("control", 1)):
            driver.write(name, value)
        return driver

    def _post(self, driver: QueueDriver, message: _Message) -> None:
        """Post an operation, wait until the NIC has started it, and grant it as a successor."""
        operation = message.operation
        self._simulation.lend(operation.source, message.own.nbytes, writable=False)
        self._simulation.lend(operation.target, message.own.nbytes, writable=True)
        driver.post(operation)
        while driver.waiting():
            self._simulation.step(200)
        _answer(self._simulation, Header(kind=FrameKind.GRANT, tag=operation.tag, offset=1))
        self._simulation.step(200)
        self._simulation.frames(RING_STREAMS["tx"])

    def _take_back(self, message: _Message) -> None:
        operation = message.operation
        self._simulation.take_back(operation.source, message.own.nbytes, writable=False)
        self._simulation.take_back(operation.target, message.own.nbytes, writable=True)

    def _beats(self, frames: int, payload: int) -> int:
        return frames * (self.options.header_beats + payload // self.options.beat_bytes)

    def speed(self, frames: int) -> tuple[float, float]:
        """Return the frames and the cycles that this machine simulates in a second.

        A whole device is simulated, with sequence numbers, checksums and memory.
        """
        simulation = Simulation(self._verilog)
        device = RingCircuit(self.options, _PLACE, simulation=simulation)
        message = _message(frames, self.options.payload_bytes)
        device.post(message.operation)
        begun, before = time.perf_counter(), simulation.step(0)
        for frame in message.frames:
            device.receive(frame)
        device.advance()
        took, cycles = time.perf_counter() - begun, simulation.step(0) - before
        device.close()
        return frames / took, cycles / took


class _Wires:
    """The other ends of a NIC's links: a sender that uses free slots only, and acknowledgements."""

    def __init__(self, simulation: Simulation, slots: int) -> None:
        self._simulation, self._slots = simulation, slots
        self._freed = {_PARTIAL: 1, _FINAL: 1}
        """The sequence number below which all slots are free, by channel."""

    def carry(self, frames: list[bytes], wanted: int) -> list[tuple[bytes, int, int]]:
        """Send `frames` in this order until the NIC has sent `wanted` frames; return the latter.

        Each frame is returned with the cycles of its first and last beat. A frame waits until the
        NIC has a slot for it, and the frames behind it wait too.
        """
        waiting = deque(frames)
        found: list[tuple[bytes, int, int]] = []
        while len(found) < wanted:
            while waiting and self._has_slot(decode(waiting[0])):
                self._simulation.send(RING_STREAMS["rx"], waiting.popleft())
            self._simulation.step(_LOOK)
            sent = self._simulation.frames(RING_STREAMS["tx"])
            found += sent
            last = {header.flags: header for header in (decode(frame) for frame, _, _ in sent)}
            for flags, header in last.items():
                number = header.sequence + 1
                told = Header(kind=FrameKind.ACK, flags=flags, acknowledge=number)
                _answer(self._simulation, told)
            for frame, _, _ in self._simulation.frames(RING_STREAMS["rx_back"]):
                if (header := decode(frame)).kind is FrameKind.ACK:
                    freed = self._freed[header.flags]
                    self._freed[header.flags] = max(freed, header.acknowledge)
        return found

    def _has_slot(self, header: Header) -> bool:
        return header.sequence - self._freed[header.flags] < self._slots


def _answer(simulation: Simulation, header: Header) -> None:
    """Send a header to the NIC as its successor in the ring would."""
    said = replace(header, job=7, epoch=3, source=2, plan_id=4)
    simulation.send(RING_STREAMS["tx_back"], encode(said))


def _compare(found: list[tuple[bytes, int, int]], wanted: list[bytes]) -> None:
    """Compare payloads of each kind, in order; raise AssertionError if they differ."""
    for flags in (_PARTIAL, _FINAL):
        ours, theirs = (
            [frame[HEADER_BYTES:] for frame in frames if decode(frame).flags == flags]
            for frames in ([frame for frame, _, _ in found], wanted)
        )
        if ours != theirs:
            raise AssertionError("the circuit's sums differ from the sums of its twin")


def _as_final(frame: bytes) -> bytes:
    return encode(replace(decode(frame), flags=_FINAL)) + frame[HEADER_BYTES:]


def _numbered(frame: bytes, after: int) -> bytes:
    header = decode(frame)
    return encode(replace(header, sequence=header.sequence + after)) + frame[HEADER_BYTES:]


@dataclass(frozen=True, kw_only=True)
class _Message:
    operation: RingOperation
    own: np.ndarray
    frames: list[bytes]


def _message(frames: int, payload: int, tag: int = 9) -> _Message:
    rng = np.random.default_rng((frames, tag))
    parts = rng.standard_normal((2, frames * payload // 4), np.float32)
    passing, own = parts[0].tobytes(), np.ascontiguousarray(parts[1])
    operation = RingOperation(
        tag=tag,
        dtype=DType.FLOAT32,
        total=own.nbytes,
        frame_bytes=payload,
        source=own.ctypes.data,
        target=own.ctypes.data,
    )
    twin = RingTwin(
        RingOptions(payload_bytes=65536), RingPlace(rank=0, ranks=3, job=7, epoch=3, plan_id=4)
    )
    first = np.frombuffer(passing, np.float32).copy()
    twin.post(replace(operation, source=first.ctypes.data, target=first.ctypes.data))
    return _Message(operation=operation, own=own, frames=twin.frames())

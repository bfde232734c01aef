"""A simulated ring NIC in the middle of a ring: when frames leave, and how fast it is simulated."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from slackline.circuit import (
    RING_STREAMS,
    QueuedRingNic,
    QueueDriver,
    RingCircuit,
    RingOperation,
    RingOptions,
    RingPlace,
    RingTwin,
    Simulation,
    convert,
)
from slackline.wire import DType, FrameFlag, FrameKind, Header, decode, encode

_PLACE = RingPlace(rank=1, ranks=3, job=7, epoch=3, plan_id=4)
_LOOK = 16
"""Cycles between two looks at what it sent: the way of an ACK, there and back."""


@dataclass(frozen=True, kw_only=True)
class RingRun:
    """Cycles from the first beat in."""

    first: int
    """To the first beat out."""
    cycles_per_beat: float
    """Of the stream out, headers included."""


class RingBench:
    """A NIC whose sums are compared with the twin's."""

    def __init__(self, options: RingOptions, *, optimise: bool) -> None:
        self.options = options
        self._verilog, self._optimise = convert("ring", QueuedRingNic(options)), optimise
        self._simulation = Simulation(self._verilog, optimise=optimise)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._simulation.close()

    def run(self, frames: int, payload: int, *, latency: int = 0) -> RingRun:
        """A message of that many frames at a beat a cycle; memory answers after `latency`."""
        simulation = self._simulation
        simulation.memory_latency(latency)
        place = {"job": 7, "epoch": 3, "plan": 4, "rank": 1, "ranks": 3, "timeout": 1 << 30}
        driver = QueueDriver(simulation, self.options)
        for name, value in (("control", 0), *place.items(), ("control", 1)):
            driver.write(name, value)
        message = _message(frames, payload)
        twin = RingTwin(self.options, _PLACE)
        twin.post(message.operation)
        for frame in message.frames:
            twin.receive(frame)
        wanted = [frame[64:] for frame in twin.frames()]
        simulation.lend(message.operation.source, message.own.nbytes, writable=False)
        driver.post(message.operation)
        while driver.waiting():
            simulation.step(200)
        self._answer(Header(kind=FrameKind.GRANT, tag=9, offset=1))
        simulation.step(200)
        simulation.frames(RING_STREAMS["tx"])
        start, given, freed = simulation.step(0), 0, 1
        found: list[tuple[bytes, int, int]] = []
        while len(found) < frames:
            while given < frames and given + 1 - freed < self.options.slots:
                simulation.send(RING_STREAMS["rx"], message.frames[given])
                given += 1
            simulation.step(_LOOK)
            sent = simulation.frames(RING_STREAMS["tx"])
            found += sent
            if sent:
                number = decode(sent[-1][0]).sequence + 1
                self._answer(
                    Header(kind=FrameKind.ACK, flags=FrameFlag.PARTIAL, acknowledge=number)
                )
            for frame, _, _ in simulation.frames(RING_STREAMS["rx_back"]):
                if (header := decode(frame)).kind is FrameKind.ACK and header.flags:
                    freed = max(freed, header.acknowledge)
        driver.close()
        simulation.take_back(message.operation.source, message.own.nbytes, writable=False)
        if [frame[64:] for frame, _, _ in found] != wanted:
            raise AssertionError("the circuit's sums are not the twin's")
        first, last = found[0][1], found[-1][2]
        beats = frames * (self.options.header_beats + payload // self.options.beat_bytes)
        return RingRun(first=first - start, cycles_per_beat=(last - first + 1) / beats)

    def speed(self, frames: int) -> tuple[float, float]:
        """Frames and cycles a second of a whole device, numbers, checksums and memory included."""
        simulation = Simulation(self._verilog, optimise=self._optimise)
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

    def _answer(self, header: Header) -> None:
        said = replace(header, job=7, epoch=3, source=2, plan_id=4)
        self._simulation.send(RING_STREAMS["tx_back"], encode(said))


@dataclass(frozen=True, kw_only=True)
class _Message:
    operation: RingOperation
    own: np.ndarray
    frames: list[bytes]


def _message(frames: int, payload: int) -> _Message:
    rng = np.random.default_rng(frames)
    parts = rng.standard_normal((2, frames * payload // 4), np.float32)
    passing, own = parts[0].tobytes(), np.ascontiguousarray(parts[1])
    operation = RingOperation(
        tag=9,
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

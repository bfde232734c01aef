"""Drivers of simulated lanes and nodes, which compare each circuit with its twin (Python model)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from slackline.circuit import Element, NodeOptions, NodeTwin, Simulation, node_registers, twins
from slackline.wire import Collective, DType, FrameKind, Header, ReduceOp, encode

Bits = npt.NDArray[np.uint32]

SPECIAL = np.frombuffer(
    bytes.fromhex(
        "00000000 00000001 00000002 00000003 007FFFFE 007FFFFF 00800000 00800001 00FFFFFF 01000000"
        "00C00000 0C000000 33800000 33800001 34000000 3F7FFFFF 3F800000 3F800001 3F800002 3FFFFFFF"
        "40000000 4B000000 4B7FFFFF 4B800000 4B800001 73000000 7E800000 7EFFFFFF 7F000000 7F7FFFFE"
        "7F7FFFFF 7F800000 7F800001 7FBFFFFF 7FC00000 7FC12345 7FFFFFFF"
    ),
    ">u4",
).astype(np.uint32)
"""Positive zeros, subnormals, powers, neighbours of rounding limits, infinities and NaNs."""


def special_pairs() -> tuple[Bits, Bits]:
    """Return every pair of special numbers, of both signs."""
    values = np.concatenate([SPECIAL, SPECIAL | np.uint32(0x80000000)])
    a, b = np.meshgrid(values, values)
    return a.reshape(-1), b.reshape(-1)


def random_pairs(rng: np.random.Generator, count: int) -> tuple[Bits, Bits]:
    """Return pairs of random bits; in the first half of them the exponents are close."""
    a, b = (rng.integers(0, 1 << 32, count, np.uint32) for _ in range(2))
    close = count // 2
    exponents = (a[:close] >> 23) + rng.integers(0, 60, close, np.uint32) - 30
    b[:close] = (b[:close] & 0x807FFFFF) | (exponents & 255) << 23
    return a, b


def run_lanes(simulation: Simulation, lanes: int, a: Bits, b: Bits, element: Element) -> Bits:
    """Return the simulated sums of a and b, which are filled up with zeros to whole beats."""
    count = -(-len(a) // lanes)
    beats = np.zeros((count, 8 * lanes + 1), np.uint8)
    for at, operand in enumerate((a, b)):
        filled = np.zeros(count * lanes, np.uint32)
        filled[: len(operand)] = operand
        beats[:, 4 * lanes * at : 4 * lanes * (at + 1)] = filled.view(np.uint8).reshape(count, -1)
    beats[:, -1] = element
    simulation.push(0, beats)
    results = count * (2 if element.half else 1)
    simulation.run(results, cycles=20 * results + 200)
    found, _ = simulation.pull(0)
    return found.reshape(-1).view(np.uint32)[: len(a) * (2 if element.half else 1)]


def lanes_differ(simulation: Simulation, lanes: int, a: Bits, b: Bits, element: Element) -> str:
    """Return a sentence about the first pair on which circuit and Python model differ, or ""."""
    found = run_lanes(simulation, lanes, a, b, element)
    wanted = twins.lanes(a, b, element)
    wrong = np.flatnonzero(found != wanted)
    if len(wrong) == 0:
        return ""
    first = int(wrong[0])
    pair = first // 2 if element.half else first
    return (
        f"{len(wrong)} of {len(wanted)}; 0x{a[pair]:08X} + 0x{b[pair]:08X} is "
        f"0x{wanted[first]:08X}, not 0x{found[first]:08X}"
    )


@dataclass
class Sender:
    """A rank that cuts messages into frames and numbers them."""

    rank: int
    job: int = 7
    epoch: int = 3
    next_sequence: int = 1

    def message(self, payload: bytes, dtype: DType, tag: int, segment: int) -> list[bytes]:
        """Return the frames of one tensor, with `segment` bytes of it in each."""
        frames = []
        for offset in range(0, len(payload), segment):
            part = payload[offset : offset + segment]
            frames.append(encode(self.header(dtype, tag, offset, len(payload), len(part))) + part)
            self.next_sequence += 1
        return frames

    def header(self, dtype: DType, tag: int, offset: int, total: int, length: int) -> Header:
        """Return the header of the next frame."""
        return Header(
            kind=FrameKind.DATA,
            job=self.job,
            epoch=self.epoch,
            source=self.rank,
            dtype=dtype,
            collective=Collective.ALL_REDUCE,
            reduce_op=ReduceOp.SUM,
            tag=tag,
            sequence=self.next_sequence,
            offset=offset,
            total=total,
            length=length,
        )


@dataclass
class Node:
    """A simulated node that is enabled, and its twin; each frame goes to both."""

    simulation: Simulation
    options: NodeOptions
    threshold: int = 1
    local_ports: int = 0
    senders: list[Sender] = field(init=False)
    twin: NodeTwin = field(init=False)
    wanted: list[bytes] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.registers = {each.name: each.address for each in node_registers(self.options)}
        self.senders = [Sender(rank) for rank in range(self.options.ports)]
        self.twin = NodeTwin(options=self.options, job=7, epoch=3, source=9)
        settings = {"job": 7, "epoch": 3, "source": 9, "threshold": self.threshold}
        for name, value in {**settings, "local_ports": self.local_ports, "control": 1}.items():
            self.simulation.write(self.registers[name], value)

    def read(self, name: str) -> int:
        """Read a register of the simulated node by name."""
        return self.simulation.read(self.registers[name])

    def stall(self, share: float, seed: int) -> None:
        """Withhold valid and ready of every stream in that share of all cycles."""
        for port in range(self.options.ports):
            self.simulation.stall(port, share, seed + 2 * port)
            self.simulation.stall(port, share, seed + 2 * port + 1, output=True)

    def send(self, port: int, frame: bytes, *, not_before: int = 0, bad: bool = False) -> None:
        """Send a frame of rank `port` to the circuit and the twin."""
        self.simulation.send(port, frame, not_before=not_before, bad=bad)
        self.wanted += self.twin.receive(port, frame, bad=bad)

    def send_all(self, frames: Sequence[Iterable[bytes]]) -> None:
        """Send the frames of all ports, in turns."""
        for row in zip(*frames, strict=True):
            for port, frame in enumerate(row):
                self.send(port, frame)

    def messages(
        self, rng: np.random.Generator, dtype: DType, count: int, tag: int = 0
    ) -> list[list[bytes]]:
        """Return each rank's frames of a tensor of `count` random elements."""
        size = count * dtype.itemsize
        return [
            sender.message(rng.bytes(size), dtype, tag, self.options.payload_bytes)
            for sender in self.senders
        ]

    def difference(self, cycles: int = 100_000) -> str:
        """Simulate until the circuit has sent all of the twin's frames; return the first error.

        Sums that are sent again count once, because circuit and Python model resend at different
        times.
        """
        try:
            self.simulation.run(len(self.wanted), cycles=cycles, frames=True)
        except TimeoutError as error:
            return str(error)
        while any(map(self.simulation.waiting, range(self.options.ports))) and cycles > 0:
            self.simulation.step(1000)
            cycles -= 1000
        self.simulation.step(5000)
        for port in range(self.options.ports):
            given = [frame for frame, _, _ in self.simulation.frames(port)]
            found = list(dict.fromkeys(given))
            if len(found) != len(self.wanted):
                return f"port {port} gave {len(found)} frames, not {len(self.wanted)}"
            for k, (one, other) in enumerate(zip(found, self.wanted, strict=True)):
                if one != other:
                    return f"frame {k} at port {port} differs: {one.hex()}, not {other.hex()}"
        return self._events()

    def _events(self) -> str:
        for port, events in enumerate(self.twin.events):
            for name, count in events.items():
                if (found := self.read(f"port{port}_{name}")) != count:
                    return f"port{port}_{name} is {found}, not {count}"
        if (found := self.read("mismatched")) != self.twin.mismatched:
            return f"mismatched is {found}, not {self.twin.mismatched}"
        return ""


def resealed(frame: bytes, **changes: object) -> bytes:
    """Return the frame with other header fields and the header checksum that belongs to them."""
    from slackline.wire import HEADER_BYTES, decode

    return encode(replace(decode(frame), **changes)) + frame[HEADER_BYTES:]  # type: ignore[arg-type]

"""A message through a simulated aggregation node, and the cycles at which its sums leave."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from slackline.circuit import (
    NodeOptions,
    NodeTwin,
    Simulation,
    cached_node,
    node_registers,
)
from slackline.wire import Collective, DType, FrameKind, Header, ReduceOp, encode


@dataclass(frozen=True, kw_only=True)
class Jitter:
    """A random delay of each frame, independent for every sender."""

    frames: int = 0
    """The longest delay, in multiples of the time that a frame takes."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Run:
    """The result of a run; cycles are counted from the first beat of input."""

    first: int
    """The cycle of the first beat of sums."""
    last: int
    """The cycle of the last beat of sums."""
    cycles_per_beat: float
    """The cycles for each beat of the stream of sums, headers included."""
    starved: int
    """The cycles in which reduction had begun and waited for data."""


class NodeBench:
    """A simulated node that is reset for every run; every sum is compared with the twin's.

    The twin is the circuit's function in Python.
    """

    def __init__(self, options: NodeOptions) -> None:
        self.options = options
        self._simulation = Simulation(cached_node(options))
        self._registers = {each.name: each.address for each in node_registers(options)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._simulation.close()

    def run(
        self,
        frames: int,
        *,
        threshold: int,
        jitter: Jitter | None = None,
        payload: int | None = None,
        cycles_a_frame: float = 0,
    ) -> Run:
        """Send `frames` frames of float32 into every port, and return when the sums leave.

        `payload` is a frame's payload in bytes; the default is the longest that the node takes.
        A frame begins every `cycles_a_frame` cycles, but a port takes at most a beat a cycle;
        jitter delays frames further. Raises AssertionError if a sum differs from the twin's.
        """
        jitter = jitter or Jitter()
        options, simulation = self.options, self._simulation
        size = payload or options.payload_bytes
        for name, value in (("control", 0), ("threshold", threshold), ("control", 1)):
            simulation.write(self._registers[name], value)
        before = self._starved()
        beats = options.header_beats + -(-size // options.beat_bytes)
        pace = max(beats, cycles_a_frame)
        late = np.random.default_rng(jitter.seed)
        twin = NodeTwin(options=options)
        wanted = []
        start = simulation.step(0) + 1
        for k in range(frames):
            for port in range(options.ports):
                frame = self._frame(port, k, frames, size)
                delay = int(late.integers(0, jitter.frames * beats + 1))
                simulation.send(port, frame, not_before=start + math.ceil(k * pace) + delay)
                wanted += twin.receive(port, frame)
        simulation.run(frames, cycles=200 * frames * math.ceil(pace) + 10_000, frames=True)
        outputs = [simulation.frames(port) for port in range(options.ports)]
        for output in outputs:
            if [frame for frame, _, _ in output] != wanted:
                raise AssertionError("the circuit's sums differ from the sums of its twin")
        first, last = outputs[0][0][1], outputs[0][-1][2]
        return Run(
            first=first - start,
            last=last - start,
            cycles_per_beat=(last - first + 1) / (frames * beats),
            starved=self._starved() - before,
        )

    def _starved(self) -> int:
        return self._simulation.read(self._registers["no_peer_data"])

    @staticmethod
    def _frame(port: int, k: int, frames: int, size: int) -> bytes:
        values = np.random.default_rng((port, k)).standard_normal(size // 4, np.float32)
        header = Header(
            kind=FrameKind.DATA,
            source=port,
            dtype=DType.FLOAT32,
            collective=Collective.ALL_REDUCE,
            reduce_op=ReduceOp.SUM,
            sequence=k + 1,
            offset=k * size,
            total=frames * size,
            length=size,
        )
        return encode(header) + values.tobytes()

"""All-reduces over several simulated ring NICs (a circuit that adds its host's part in passing).

Either the whole tensor starts at rank 0, or the ring rotates: each chunk starts at another rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

import numpy as np
from _harness.report import Row

from slackline.circuit import (
    RING_STREAMS,
    QueueDriver,
    RingOperation,
    RingOptions,
    Simulation,
    cached_ring,
    rotated,
)
from slackline.wire import DType

RANKS = 4
WIRES = {"a beat a cycle": 0.0, "100 Gb/s": 1 - 100e9 / (512 * 322.27e6)}
"""The share of cycles in which a link accepts no beat, by the name of the wire.

A link has 512 bits at the clock of a 100 GbE MAC.
"""
_WIRE = 16
"""The latency of a wire in cycles, each way."""
_LONGEST = 1_000_000


@dataclass(frozen=True, kw_only=True)
class _Tensor:
    """The tensor of one rank, in which the sum is stored, with the operations that reduce it."""

    memory: np.ndarray
    operations: tuple[RingOperation, ...]


class AllReduceBench:
    """A ring of simulated NICs.

    Each beat that leaves one NIC reaches the next some cycles later.
    """

    def __init__(self, options: RingOptions) -> None:
        self.options = options
        self._stack = ExitStack()
        verilog = cached_ring(options)
        self._nics = [self._stack.enter_context(Simulation(verilog)) for _ in range(RANKS)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, size: int, payload: int, *, rotating: bool, withheld: float = 0) -> int:
        """Return the cycles from the doorbells to the last completion; compare every sum.

        `withheld` is the share of cycles in which a link takes no beat. Raises AssertionError if a
        sum is wrong.
        """
        for rank, nic in enumerate(self._nics):
            nic.stall(RING_STREAMS["tx"], withheld, rank + 1, output=True)
        rng = np.random.default_rng(size)
        parts = [rng.standard_normal(size // 4, np.float32) for _ in self._nics]
        tensors = [_tensor(part.copy(), payload, rotating=rotating) for part in parts]
        drivers = [self._opened(rank) for rank in range(RANKS)]
        for nic, driver, tensor in zip(self._nics, drivers, tensors, strict=True):
            for writable in (False, True):
                nic.lend(tensor.memory.ctypes.data, size, writable=writable)
            for operation in tensor.operations:
                driver.post(operation)
        start, left = self._nics[0].step(0), [len(each.operations) for each in tensors]
        while any(left):
            if self._nics[0].step(0) - start > _LONGEST:
                raise AssertionError(f"{left} operations were not completed")
            self._step()
            for rank, driver in enumerate(drivers):
                left[rank] -= len(driver.completions())
        took = self._nics[0].step(0) - start
        for nic, driver, tensor in zip(self._nics, drivers, tensors, strict=True):
            for writable in (False, True):
                nic.take_back(tensor.memory.ctypes.data, size, writable=writable)
            driver.close()
        wanted = _sum(parts, tensors[0]).tobytes()
        if any(tensor.memory.tobytes() != wanted for tensor in tensors):
            raise AssertionError("the circuits' sum differs from the sum in the order of the ring")
        return took

    def bound(self, size: int, payload: int, *, rotating: bool) -> float:
        """Return the cycles that the busiest link needs for the frames, headers included."""
        frame = (64 + payload) / self.options.beat_bytes
        times = 2 * (RANKS - 1) / RANKS if rotating else 2
        return times * size / payload * frame

    def _opened(self, rank: int) -> QueueDriver:
        driver = QueueDriver(self._nics[rank], self.options)
        registers = {"rank": rank, "ranks": RANKS, "timeout": 1 << 30}
        for name, value in (("control", 0), *registers.items(), ("control", 1)):
            driver.write(name, value)
        return driver

    def _step(self) -> None:
        """Advance all NICs by the latency of a wire.

        Then move each NIC's output to its neighbours.
        """
        for nic in self._nics:
            nic.step(_WIRE)
        for rank, nic in enumerate(self._nics):
            for given, to, taken in (
                ("tx", (rank + 1) % RANKS, "rx"),
                ("rx_back", (rank - 1) % RANKS, "tx_back"),
            ):
                beats, _ = nic.pull(RING_STREAMS[given])
                if len(beats):
                    self._nics[to].push(RING_STREAMS[taken], beats)


def allreduce_rows(
    bench: AllReduceBench,
    messages: Sequence[tuple[int, int]],
    wires: Mapping[str, float] = WIRES,
) -> list[Row]:
    """Measure both kinds of ring; return their cycles, and the cycles that the link alone needs.

    `messages` are pairs of a size and a frame's payload, in bytes. Each pair is measured over each
    wire.
    """
    rows = []
    for wire, withheld in wires.items():
        for size, payload in messages:
            values: dict[str, float] = {}
            for name, rotating in (("reduce_broadcast", False), ("rotating", True)):
                cycles = bench.run(size, payload, rotating=rotating, withheld=withheld)
                least = bench.bound(size, payload, rotating=rotating) / (1 - withheld)
                values[f"{name}_cycles"] = cycles
                values[f"{name}_over_link"] = cycles / least
            labels = {"ranks": RANKS, "wire": wire, "bytes": size, "payload_bytes": payload}
            rows.append(Row(labels=labels, values=values))
    return rows


def _tensor(memory: np.ndarray, payload: int, *, rotating: bool) -> _Tensor:
    whole = RingOperation(
        tag=9,
        dtype=DType.FLOAT32,
        total=memory.nbytes,
        frame_bytes=payload,
        source=memory.ctypes.data,
        target=memory.ctypes.data,
    )
    operations = rotated(whole, RANKS) if rotating else (whole,)
    return _Tensor(memory=memory, operations=operations)


def _sum(parts: Sequence[np.ndarray], tensor: _Tensor) -> np.ndarray:
    """Return the sum of each chunk in the order of the ring, which begins at its starting rank."""
    total = np.empty_like(parts[0])
    for operation in tensor.operations:
        first = (operation.source - tensor.memory.ctypes.data) // 4
        chunk = slice(first, first + operation.total // 4)
        total[chunk] = parts[operation.start][chunk]
        for hop in range(1, RANKS):
            total[chunk] += parts[(operation.start + hop) % RANKS][chunk]
    return total

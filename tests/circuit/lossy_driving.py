"""Simulated ring NICs joined by wires that lose, double, delay and damage frames."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ring_driving import EPOCH, JOB, PLAN, Tensors, differences

from slackline.circuit import RING_STREAMS as STREAMS
from slackline.circuit import Code, QueueDriver, RingOperation, RingOptions, Simulation

_TURN = 100
"""Cycles from one delivery of the frames on the wires to the next."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """The share of frames that each kind of fault affects, on every wire and in both directions."""

    lost: float = 0
    doubled: float = 0
    late: float = 0
    """Late frames come up to ten turns later, so that frames sent after them come first."""
    damaged: float = 0


class CircuitRing:
    """A ring of simulated NICs that number, acknowledge and grant frames by themselves."""

    def __init__(
        self,
        simulations: Sequence[Simulation],
        options: RingOptions,
        faults: Faults,
        rng: np.random.Generator,
        timeout: int = 2000,
        *,
        completions: int | None = None,
        lazy: float = 0,
    ) -> None:
        """Configure and enable the NICs, and give each a driver.

        `completions` is the number of entries in the hosts' completion queues. `lazy` is the share
        of turns in which a host does not look at them.
        """
        self.simulations, self.options, self.faults, self.rng = simulations, options, faults, rng
        self._wires: list[tuple[int, int, int, bytes, bool]] = []
        self._turn = 0
        self._lazy = lazy
        self.done: list[list[tuple[int, int]]] = [[] for _ in simulations]
        self._sums: list[dict[tuple[int, int], tuple[int, bytes]]] = [{} for _ in simulations]
        """The address and the bytes that a sum must have at its completion, for each rank and
        operation."""
        self._early = ""
        settings = {"job": JOB, "epoch": EPOCH, "plan": PLAN, "ranks": len(simulations)}
        room = 8 * options.operations
        self.drivers = [
            QueueDriver(each, options, descriptors=room, completions=completions)
            for each in simulations
        ]
        for rank, driver in enumerate(self.drivers):
            mine = {**settings, "timeout": timeout, "rank": rank, "control": 1}
            for name, value in mine.items():
                driver.write(name, value)

    def post(self, rank: int, tensors: Tensors, operation: RingOperation) -> None:
        simulation = self.simulations[rank]
        simulation.lend(operation.source, operation.total, writable=False)
        simulation.lend(operation.target, operation.total, writable=True)
        self.drivers[rank].post(operation)
        at = operation.target - tensors.targets[rank].ctypes.data
        wanted = tensors.wanted.tobytes()[at : at + operation.total]
        self._sums[rank][operation.key] = (operation.target, wanted)

    def total(self, name: str) -> int:
        """Return the sum of a counter over all NICs."""
        return sum(each.read(name) for each in self.drivers)

    def turn(self) -> None:
        """Simulate all NICs for a number of cycles, then deliver their frames, with faults."""
        ranks = len(self.simulations)
        for rank, simulation in enumerate(self.simulations):
            simulation.step(_TURN)
            for stream, to, there in (
                ("tx", (rank + 1) % ranks, "rx"),
                ("rx_back", (rank - 1) % ranks, "tx_back"),
            ):
                for frame, _, _ in simulation.frames(STREAMS[stream]):
                    self._spoil(to, STREAMS[there], frame)
            if self._lazy and self.rng.random() < self._lazy:
                continue
            completed = self.drivers[rank].completions()
            assert all(each.code is Code.DONE for each in completed)
            for each in completed:
                self.done[rank].append(each.key)
                target, wanted = self._sums[rank][each.key]
                if ctypes.string_at(target, len(wanted)) != wanted:
                    self._early = f"rank {rank}: {each.key} was completed before its sum was there"
        due = [each for each in self._wires if each[0] <= self._turn]
        self._wires = [each for each in self._wires if each[0] > self._turn]
        for _, to, stream, frame, bad in due:
            self.simulations[to].send(stream, frame, bad=bad)
        self._turn += 1

    def run(self, operations: Sequence[Tensors], *, turns: int) -> str:
        """Post all operations, each rank in its own order, until all are done; return an error.

        The error is empty if every rank has every sum.
        """
        posts = [
            [(tensors, each) for tensors in operations for each in tensors.operations(rank)]
            for rank in range(len(self.simulations))
        ]
        left = [list(self.rng.permutation(len(mine))) for mine in posts]
        opened = [0] * len(left)
        for _ in range(turns):
            for rank, mine in enumerate(left):
                free = opened[rank] - len(self.done[rank]) < self.options.operations
                if mine and free and self.rng.random() < 0.3:
                    self.post(rank, *posts[rank][mine.pop()])
                    opened[rank] += 1
            self.turn()
            if all(len(done) == len(mine) for done, mine in zip(self.done, posts, strict=True)):
                break
        return self._early or differences(operations, self.done)

    def _spoil(self, to: int, stream: int, frame: bytes) -> None:
        faults, rng = self.faults, self.rng
        if rng.random() < faults.lost:
            return
        for _ in range(1 + (rng.random() < faults.doubled)):
            due, spoiled, bad = self._turn, bytearray(frame), False
            if rng.random() < faults.late:
                due += int(rng.integers(1, 10))
            if rng.random() < faults.damaged:
                # A MAC reports all damage; the circuit itself can find damage to the header.
                at = int(rng.integers(0, len(frame)))
                spoiled[at] ^= 1 << int(rng.integers(0, 8))
                bad = at >= 64 or rng.random() < 0.5
            self._wires.append((due, to, stream, bytes(spoiled), bad))

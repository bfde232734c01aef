"""Tests' drivers of a ring NIC's queues, with a stand-in for the NIC or with the real NIC."""

from collections import Counter, deque
from typing import Any

import numpy as np
from amaranth.hdl import Module
from amaranth.lib import wiring
from lossy_driving import CircuitRing, Faults
from ring_driving import DTYPES, differences, tensors

from slackline.circuit import (
    DESCRIPTOR,
    Code,
    QueueDriver,
    Register,
    RingOperation,
    RingOptions,
    Simulation,
    Verilog,
)
from slackline.wire import DType

RANKS = 3
REFUSED = [code for code in Code if code not in (Code.DONE, Code.READ)]
"""The codes of descriptors that are read, and have a wrong field."""
LINE = 0x200
"""The address at which `Desk` shows its interrupt."""
STREAMS = {
    "completions": 1,
    "failures": 2,
    "nic_read_requests": 3,
    "nic_write_requests": 4,
    "nic_write_data": 5,
    "descriptors": 3,
    "nic_read_data": 4,
}
"""The numbers of the streams in a simulation of `Desk`."""


def desk(options: RingOptions) -> Any:
    """Return RingQueues with the NIC's registers and the interrupt's level on the same bus."""
    from slackline.circuit.bus import Bank
    from slackline.circuit.registers import nic_registers
    from slackline.circuit.ring.queue import RingQueues

    queues = RingQueues(options)
    inner = ("interrupt", "enabled", "ranks")

    class Desk(wiring.Component):
        def __init__(self) -> None:
            members = queues.signature.members.items()
            super().__init__({name: each for name, each in members if name not in inner})

        def elaborate(self, platform: object) -> Module:
            m = Module()
            line = Register(name="line", address=LINE, kind="state", meaning="")
            m.submodules.bank = bank = Bank((*nic_registers(options), line))
            m.submodules.queues = queues
            for name in self.signature.members:
                if name != "bus":
                    wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(queues, name))
            for side in (bank.bus, queues.bus):
                m.d.comb += [
                    side.address.eq(self.bus.address),
                    side.write.eq(self.bus.write),
                    side.write_data.eq(self.bus.write_data),
                ]
            m.d.comb += [
                self.bus.read_data.eq(bank.bus.read_data | queues.bus.read_data),
                queues.enabled.eq(bank.settings["control"][0]),
                queues.ranks.eq(bank.settings["ranks"]),
                bank.states["line"].eq(queues.interrupt),
            ]
            return m

    return Desk()


WRONG: dict[Code, dict[str, int]] = {
    Code.DTYPE: {"dtype": int(DType.INT64)},
    Code.TOTAL: {"total": 0},
    Code.FRAME_BYTES: {"frame_bytes": 96},
    Code.START: {"start": RANKS},
}


class Work:
    """A descriptor, valid or not, and the memory that it refers to."""

    def __init__(self, rng: np.random.Generator, tag: int, code: Code) -> None:
        self.code, self.count = code, int(rng.integers(1, 24))
        self.own = rng.integers(0, 256, 4 * self.count, np.uint8)
        self.sum = np.zeros_like(self.own)
        self.wanted = self.own[::-1].copy()
        operation = RingOperation(
            tag=tag,
            dtype=DType.FLOAT32,
            total=4 * self.count,
            frame_bytes=64,
            source=self.own.ctypes.data,
            target=self.sum.ctypes.data,
            chunk=tag % 7,
            start=tag % RANKS,
        )
        self.key = operation.key
        values = {each.name: int(getattr(operation, each.name)) for each in DESCRIPTOR.fields}
        self.values = values | WRONG.get(code, {})
        entry = bytearray(DESCRIPTOR.pack(self.values))
        if code is Code.RESERVED:
            entry[-1] = 1
        self.entry = bytes(entry)


class Office:
    """A host and a stand-in for the NIC, both random; the queues wrap often and are often full."""

    def __init__(
        self,
        simulation: Simulation,
        options: RingOptions,
        rng: np.random.Generator,
        *,
        descriptors: int,
        completions: int,
        lazy: float = 0.5,
    ) -> None:
        """Configure the queues; in a share `lazy` of turns, the host reads no completions."""
        self.simulation, self.options, self.rng, self.lazy = simulation, options, rng, lazy
        self.driver = QueueDriver(
            simulation, options, descriptors=descriptors, completions=completions
        )
        self._size = descriptors
        for name, value in {"control": 0, "ranks": RANKS, "interrupt": 1}.items():
            self.driver.write(name, value)
        self.driver.write("control", 1)
        self.posted: deque[Work] = deque()
        """Descriptors that the NIC has not seen yet."""
        self.works: dict[tuple[int, int], Work] = {}
        self.open: list[Work] = []
        """Descriptors whose writes the NIC has not begun."""
        self.written: list[Work] = []
        self.codes: Counter[Code] = Counter()
        self.done: Counter[tuple[int, int]] = Counter()
        self.said = ""
        self._read: deque[Work] = deque()
        """Descriptors whose data are being read, in the order of the requests."""
        self._given: list[bytes] = []
        """Beats that came for these reads."""

    def line(self) -> int:
        """Read the level of the interrupt."""
        return self.simulation.read(LINE)

    def run(self, count: int, *, turns: int) -> str:
        """Post `count` descriptors until all are answered; return the first error, or ""."""
        tag = 0
        for _ in range(turns):
            while tag < count and self.driver.room() and self.rng.random() < 0.7:
                self._post(tag)
                tag += 1
            self.driver.ring()
            self.simulation.step(int(self.rng.integers(1, 60)))
            self._as_nic()
            if self.rng.random() >= self.lazy:
                self._take()
            if self.said or sum(self.done.values()) == count:
                break
        if self.said:
            return self.said
        if (found := sum(self.done.values())) != count:
            return f"{found} of {count} were answered"
        return "" if set(self.done.values()) == {1} else "one was answered twice"

    def _post(self, tag: int) -> None:
        right = self.rng.random() < 0.6
        code = Code.DONE if right else REFUSED[int(self.rng.integers(len(REFUSED)))]
        work = Work(self.rng, tag, code)
        self.works[work.key] = work
        self.codes[code] += 1
        self.simulation.lend(work.values["source"], work.own.nbytes, writable=False)
        self.simulation.lend(work.values["target"], work.sum.nbytes, writable=True)
        self.driver.put(work.entry)
        if code is Code.DONE:
            self.posted.append(work)

    def _as_nic(self) -> None:
        """Act as the NIC: read posted data, write them backwards, complete in random order."""
        simulation, rng = self.simulation, self.rng
        found, _ = simulation.pull(STREAMS["descriptors"])
        for beat in found:
            work = self.posted.popleft() if self.posted else None
            if work is None or beat.tobytes() != _opened(work.values):
                self.said = self.said or f"not the next descriptor: {beat.tobytes().hex()}"
                return
            self._ask("nic_read_requests", work.values["source"], work.own.nbytes)
            self._read.append(work)
        beats, _ = simulation.pull(STREAMS["nic_read_data"])
        self._given += [beat.tobytes() for beat in beats]
        while self._read and len(self._given) >= self._read[0].count:
            work = self._read.popleft()
            part, self._given = self._given[: work.count], self._given[work.count :]
            if b"".join(beat[:4] for beat in part) != work.own.tobytes():
                self.said = self.said or "other data were read than asked for"
            self.open.append(work)
        rng.shuffle(self.open)  # type: ignore[arg-type]
        while self.open and rng.random() < 0.6:
            work = self.open.pop()
            self._ask("nic_write_requests", work.values["target"], work.sum.nbytes)
            beats = np.zeros((work.count, 5), np.uint8)
            beats[:, :4] = work.wanted.reshape(-1, 4)
            beats[-1, 4] = 1
            simulation.push(STREAMS["nic_write_data"], beats)
            self.written.append(work)
        if not simulation.waiting(STREAMS["nic_write_data"]):
            for work in self.written:
                key = work.key[0].to_bytes(8, "little") + work.key[1].to_bytes(2, "little")
                simulation.push(STREAMS["completions"], np.frombuffer(key, np.uint8).reshape(1, -1))
            self.written.clear()

    def _ask(self, stream: str, address: int, size: int) -> None:
        request = address.to_bytes(8, "little") + size.to_bytes(4, "little")
        self.simulation.push(STREAMS[stream], np.frombuffer(request, np.uint8).reshape(1, -1))

    def _take(self) -> None:
        for each in self.driver.completions():
            work = self.works.get(each.key)
            if work is None or each.code is not work.code:
                self.said = self.said or f"completed as {each}"
                return
            self.done[each.key] += 1
            if each.code is Code.DONE and work.sum.tobytes() != work.wanted.tobytes():
                self.said = self.said or f"{each.key} was completed before its data were there"


def _opened(values: dict[str, int]) -> bytes:
    """Return a descriptor's bits as the NIC gets them."""
    from slackline.circuit.ring._layouts import Descriptor

    layout = Descriptor()
    packed = sum(values[name] << field.offset for name, field in layout)
    return packed.to_bytes(-(-layout.size // 8), "little")


def slow_ring(options: RingOptions, made: Verilog | None = None) -> str:
    """Run two NICs whose hosts' memory takes writes slowly; return the first error, or ""."""
    from slackline.circuit import QueuedRingNic, convert

    verilog = made or convert("ring", QueuedRingNic(options))
    rng = np.random.default_rng(5)
    operations = [tensors(rng, options, 2, DTYPES[k % 4], 40, k) for k in range(8)]
    with Simulation(verilog) as one, Simulation(verilog) as other:
        for simulation in (one, other):
            simulation.stall(3, 0.995, 1, output=True)
        ring = CircuitRing([one, other], options, Faults(), rng, timeout=100_000)
        return ring.run(operations, turns=1500)


def lazy_ring(options: RingOptions, made: Verilog | None = None) -> str:
    """Run two NICs whose hosts seldom take completions; return the first error, or "".

    Each completion queue has one entry, so more operations end than the NICs can report at once.
    """
    from slackline.circuit import QueuedRingNic, convert

    verilog = made or convert("ring", QueuedRingNic(options))
    rng = np.random.default_rng(6)
    operations = [tensors(rng, options, 2, DTYPES[k % 4], 1 + k, k) for k in range(40)]
    with Simulation(verilog) as one, Simulation(verilog) as other:
        ring = CircuitRing(
            [one, other], options, Faults(), rng, timeout=100_000, completions=1, lazy=0.95
        )
        left = [list(operations) for _ in ring.drivers]
        for _ in range(2500):
            for rank, mine in enumerate(left):
                while mine and ring.drivers[rank].room():
                    each = mine.pop(0)
                    ring.post(rank, each, each.operations(rank)[0])
            ring.turn()
            if all(len(done) == len(operations) for done in ring.done):
                break
        stopped = ring.total("no_completion_room") > 10_000
        return differences(operations, ring.done) or ("" if stopped else "nothing ever waited")

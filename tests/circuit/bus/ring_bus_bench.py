"""A ring NIC within Icarus, with a host and its memory, and a twin (Python model) as other rank."""

import random
import struct
from collections import deque
from dataclasses import replace
from typing import Any

import cocotb
from bus_host import BusHost, pausing
from cocotb.triggers import RisingEdge, with_timeout
from cocotbext.axi import AxiStreamFrame, AxiStreamSink, AxiStreamSource
from cocotbext.axi.sparse_memory import SparseMemory
from ring_driving import EPOCH, JOB, PLAN, Tensors

from slackline.circuit import RingOperation, RingOptions, RingPlace, RingTwin, ring_registers
from slackline.wire import FrameFlag, FrameKind, Header, decode, encode

OPTIONS = RingOptions(lanes=1, slots=2, payload_bytes=128, operations=4)
REGISTERS = {each.name: each for each in ring_registers(OPTIONS)}
WAIT = (40, "us")
DESCRIPTORS, COMPLETIONS = 4, 2
DESCRIPTORS_AT, COMPLETIONS_AT, TENSORS_AT = 0x12_3456_7000, 0x7F_0000_0010, 0x2_0000_0000
PLACE = struct.Struct("<QQQQIBxHH22x")
"""A descriptor's layout, taken from the documents and not from the circuit's own table."""
ENTRY = struct.Struct("<QHBxHxB")
"""A completion's layout."""

RULES = {
    **{
        f"m_axis_{name}_t": tuple(
            f"m_axis_{name}_{wire}" for wire in ("tdata", "tkeep", "tlast", "tuser")
        )
        for name in ("tx", "rx_back", "write_data")
    },
    **{
        f"m_axis_{name}_t": (f"m_axis_{name}_tdata",)
        for name in ("read_requests", "write_requests")
    },
    "s_axil_b": ("s_axil_bresp",),
    "s_axil_r": ("s_axil_rdata", "s_axil_rresp"),
}
"""The streams that the NIC drives: the stem of valid and ready, and the payload's wires."""


class RingBusBench(BusHost):
    """A NIC that is rank `rank` of 2, with a twin (Python model) as its neighbour on both sides."""

    def __init__(self, dut: Any, rank: int, seed: int, pauses: float) -> None:
        super().__init__(dut, REGISTERS, WAIT)
        self.rank = rank
        self.sources = {
            name: self.stream(AxiStreamSource, f"s_axis_{name}")
            for name in ("rx", "tx_back", "read_data")
        }
        names = ("tx", "rx_back", "read_requests", "write_requests", "write_data")
        self.sinks = {name: self.stream(AxiStreamSink, f"m_axis_{name}") for name in names}
        for k, each in enumerate((*self.sources.values(), *self.sinks.values())):
            each.set_pause_generator(pausing(random.Random(100 * seed + k), pauses))
        for k, name in enumerate(("read_requests", "write_requests") if pauses else ()):
            # The sink is so slow that one request still waits when another comes.
            slow = pausing(random.Random(100 * seed + 50 + k), 1 - (1 - pauses) / 8)
            self.sinks[name].set_pause_generator(slow)
        self.memory = SparseMemory(1 << 48)
        self.other = self._twin(1 - rank)
        self.tail = self.taken = 0
        self.answers: list[tuple[int, int, int]] = []
        """Tag, chunk and code of each completion."""
        self._waiting: dict[FrameFlag, deque[bytes]] = {
            flags: deque() for flags in (FrameFlag(0), FrameFlag.PARTIAL)
        }
        self._free = dict.fromkeys(self._waiting, 1 + OPTIONS.slots)
        """The first number that has no free slot yet, for each kind of frame."""
        self._others = 0
        """Operations that the twin has completed."""
        for task in (self._reads(), self._writes(), self._out(), self._back()):
            cocotb.start_soon(task)

    def _twin(self, rank: int) -> RingTwin:
        place = RingPlace(rank=rank, ranks=2, job=JOB, epoch=EPOCH, plan_id=PLAN)
        return RingTwin(OPTIONS, place)

    async def _reads(self) -> None:
        """Answer the NIC's read requests in order, as a DMA core does."""
        while True:
            asked = await self.sinks["read_requests"].recv()
            address, size = struct.unpack("<QI", bytes(asked.tdata))
            found = bytes(self.memory.read(address, size))
            await self.sources["read_data"].send(AxiStreamFrame(found + bytes(-size % 4)))

    async def _writes(self) -> None:
        while True:
            asked = await self.sinks["write_requests"].recv()
            address, size = struct.unpack("<QI", bytes(asked.tdata))
            data = bytes((await self.sinks["write_data"].recv()).tdata)
            assert len(data) == size + -size % 4
            self.memory.write(address, data[:size])

    async def _out(self) -> None:
        """Act as the successor: grant requests, acknowledge frames, and pass frames to the twin."""
        while True:
            frame = bytes((await self.sinks["tx"].recv()).tdata)
            header = decode(frame)
            if header.kind is FrameKind.GRANT:
                grant = replace(header, source=1 - self.rank, offset=1)
                self.sources["tx_back"].send_nowait(AxiStreamFrame(encode(grant)))
                continue
            ack = Header(
                kind=FrameKind.ACK,
                flags=header.flags,
                acknowledge=header.sequence + 1,
                job=JOB,
                epoch=EPOCH,
                source=1 - self.rank,
                plan_id=PLAN,
            )
            self.sources["tx_back"].send_nowait(AxiStreamFrame(encode(ack)))
            self.other.receive(frame)
            self.hand_over()

    async def _back(self) -> None:
        """Act as the predecessor: send frames when an ACK frees a slot."""
        while True:
            header = decode(bytes((await self.sinks["rx_back"].recv()).tdata))
            if header.kind is FrameKind.ACK:
                self._free[header.flags] = header.acknowledge + OPTIONS.slots
                self.hand_over()

    def hand_over(self) -> None:
        """Send the twin's frames to the NIC, as far as there are free slots."""
        for frame in self.other.frames():
            self._waiting[decode(frame).flags].append(frame)
        self._others += len(self.other.completed())
        for flags, waiting in self._waiting.items():
            while waiting and decode(waiting[0]).sequence < self._free[flags]:
                self.sources["rx"].send_nowait(AxiStreamFrame(waiting.popleft()))

    async def open(self) -> None:
        self.tail = self.taken = 0
        self.memory.write(COMPLETIONS_AT, bytes(16 * COMPLETIONS))
        settings = {
            "job": JOB,
            "epoch": EPOCH,
            "rank": self.rank,
            "ranks": 2,
            "plan": PLAN,
            "descriptor_base_low": DESCRIPTORS_AT & 0xFFFFFFFF,
            "descriptor_base_high": DESCRIPTORS_AT >> 32,
            "descriptor_bits": DESCRIPTORS.bit_length() - 1,
            "completion_base_low": COMPLETIONS_AT & 0xFFFFFFFF,
            "completion_base_high": COMPLETIONS_AT >> 32,
            "completion_bits": COMPLETIONS.bit_length() - 1,
            "interrupt": 1,
            "control": 1,
        }
        for name, value in settings.items():
            await self.write(name, value)

    def put(self, operation: RingOperation, source: int, **changes: int) -> None:
        """Write an operation's descriptor, for memory at `source`, into the queue."""
        values = {"total": operation.total, "frame_bytes": operation.frame_bytes} | changes
        entry = PLACE.pack(
            operation.tag,
            source,
            source,
            values["total"],
            values["frame_bytes"],
            operation.dtype,
            operation.chunk,
            operation.start,
        )
        self.memory.write(DESCRIPTORS_AT + 64 * (self.tail % DESCRIPTORS), entry)
        self.tail += 1

    async def ring(self) -> None:
        await self.write("descriptor_tail", self.tail)

    async def wait(self) -> None:
        """Wait for the interrupt, then take the completions that are new by their phase."""
        before = len(self.answers)
        while self.dut.interrupt.value == 0:
            await RisingEdge(self.dut.aclk)
        # Memory has all that was written before the interrupt.
        await RisingEdge(self.dut.aclk)
        while True:
            at = COMPLETIONS_AT + 16 * (self.taken % COMPLETIONS)
            tag, chunk, code, _, phase = ENTRY.unpack(bytes(self.memory.read(at, 16)))
            if phase == self.taken // COMPLETIONS % 2:
                break
            self.answers.append((tag, chunk, code))
            self.taken += 1
        assert len(self.answers) > before, "an interrupt without a completion"
        await self.write("completion_taken", self.taken)
        # The read back, which drivers do too, ensures that the interrupt's level has followed.
        assert await self.read("completion_taken") == self.taken

    async def sums(self, tensors: list[Tensors]) -> None:
        """Sum all tensors, as many at a time as find room; check the sums in memory."""
        left, here = list(tensors), {}
        while left or len(self.answers) < len(tensors):
            while left and len(here) - min(len(self.answers), self._others) < OPTIONS.operations:
                each = left.pop(0)
                here[each.tag] = at = TENSORS_AT + 0x1000 * each.tag
                self.memory.write(at, each.sources[self.rank].tobytes())
                self.other.post(each.operations(1 - self.rank)[0])
                self.put(each.operations(self.rank)[0], at)
                await self.ring()
                # The operation must be open here before the first rank sends its frames.
                while self.rank > 0 and await self.read("descriptor_head") != self.tail:
                    pass
                self.hand_over()
            if len(self.answers) < len(here):
                await with_timeout(self.wait(), *WAIT)
            await RisingEdge(self.dut.aclk)
        while self._others < len(tensors):
            await RisingEdge(self.dut.aclk)
        assert sorted(self.answers) == sorted((each.tag, 0, 0) for each in tensors)
        for each in tensors:
            found = bytes(self.memory.read(here[each.tag], each.wanted.nbytes))
            assert found == each.wanted.tobytes(), f"{each.dtype.name} {each.tag}"
            assert each.targets[1 - self.rank].tobytes() == found


async def begin(dut: Any, rank: int, seed: int, pauses: float) -> RingBusBench:
    """Return a bench whose NIC was reset, with random pauses in a share `pauses` of the cycles."""
    bench = RingBusBench(dut, rank, seed, pauses)
    await bench.begin(RULES)
    return bench

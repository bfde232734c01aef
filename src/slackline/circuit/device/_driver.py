"""A driver of a ring NIC's queues, which lie in this process's memory."""

from dataclasses import dataclass

import numpy as np

from slackline.circuit.device._operation import RingOperation
from slackline.circuit.options import RingOptions
from slackline.circuit.registers import COMPLETION, DESCRIPTOR, Code, Entry, ring_registers
from slackline.circuit.simulate import Simulation
from slackline.errors import UsageError

__all__ = ["Completed", "QueueDriver"]


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A completion, as read from the queue."""

    key: tuple[int, int]
    """The operation's tag and chunk."""
    code: Code


class QueueDriver:
    """A driver that writes descriptors, rings the doorbell, and reads completions by phase bit.

    The driver uses the bus of a simulated QueuedRingNic. The NIC must not be enabled yet (control
    bit 0).
    """

    def __init__(
        self,
        simulation: Simulation,
        options: RingOptions,
        *,
        descriptors: int | None = None,
        completions: int | None = None,
    ) -> None:
        """Lend the queues' memory to the circuit and set their registers.

        `descriptors` and `completions` are the numbers of entries of the two queues, powers of two;
        the default is `options.operations`.
        """
        self._simulation = simulation
        self._addresses = {each.name: each.address for each in ring_registers(options)}
        self._descriptors = _Queue(DESCRIPTOR, descriptors or options.operations)
        self._completions = _Queue(COMPLETION, completions or options.operations)
        self._tail = self._head = self._taken = 0
        for name, queue in (("descriptor", self._descriptors), ("completion", self._completions)):
            simulation.lend(queue.address, queue.size, writable=queue is self._completions)
            self.write(f"{name}_base_low", queue.address & 0xFFFFFFFF)
            self.write(f"{name}_base_high", queue.address >> 32)
            self.write(f"{name}_bits", queue.entries.bit_length() - 1)

    def read(self, name: str) -> int:
        """Read a register by name."""
        return self._simulation.read(self._addresses[name])

    def write(self, name: str, value: int) -> None:
        """Write a register by name."""
        self._simulation.write(self._addresses[name], value)

    def post(self, operation: RingOperation) -> None:
        """Write a descriptor and ring the doorbell; raise UsageError if the queue is full."""
        fields = {each.name: int(getattr(operation, each.name)) for each in DESCRIPTOR.fields}
        self.put(DESCRIPTOR.pack(fields))
        self.ring()

    def put(self, entry: bytes) -> None:
        """Write a descriptor, which the NIC sees only when the doorbell rings.

        Raises UsageError when the queue is full.
        """
        if not self.room():
            raise UsageError(f"the descriptor queue is full: {self._descriptors.entries} entries")
        self._descriptors.put(self._tail, entry)
        self._tail += 1

    def room(self) -> int:
        """Return the number of free entries; read the NIC's register if the queue seems full."""
        if self._tail - self._head == self._descriptors.entries:
            self._head = self._tail - self.waiting()
        return self._descriptors.entries - (self._tail - self._head)

    def ring(self) -> None:
        """Ring the doorbell, which announces all written descriptors to the NIC."""
        self.write("descriptor_tail", self._tail & 0xFFFFFFFF)

    def waiting(self) -> int:
        """Return the number of descriptors that the NIC has neither opened nor refused."""
        return (self._tail - self.read("descriptor_head")) & 0xFFFFFFFF

    def completions(self) -> list[Completed]:
        """Return the new completions, in order, and free their entries for the NIC."""
        queue, found = self._completions, list[Completed]()
        while (entry := COMPLETION.unpack(queue.get(self._taken)))["phase"] == self._phase():
            self._taken += 1
            found.append(Completed(key=(entry["tag"], entry["chunk"]), code=Code(entry["code"])))
        if found:
            self.write("completion_taken", self._taken & 0xFFFFFFFF)
        return found

    def _phase(self) -> int:
        return 1 - self._taken // self._completions.entries % 2

    def close(self) -> None:
        """End the circuit's access to the memory of the queues."""
        for queue in (self._descriptors, self._completions):
            self._simulation.take_back(
                queue.address, queue.size, writable=queue is self._completions
            )


class _Queue:
    """An array of entries in memory, zeros at first, whose start is a multiple of 64 bytes."""

    def __init__(self, entry: Entry, entries: int) -> None:
        if entries < 1 or entries & (entries - 1) or entries > 1 << 16:
            raise UsageError(f"a queue's size must be a power of two up to 65536, not {entries}")
        self.entry, self.entries, self.size = entry, entries, entry.size * entries
        memory = np.zeros(self.size + 64, np.uint8)
        start = -memory.ctypes.data % 64
        self._memory = memory[start : start + self.size]
        self.address = self._memory.ctypes.data

    def _place(self, count: int) -> slice:
        at = count % self.entries * self.entry.size
        return slice(at, at + self.entry.size)

    def put(self, count: int, entry: bytes) -> None:
        self._memory[self._place(count)] = np.frombuffer(entry, np.uint8)

    def get(self, count: int) -> bytes:
        return self._memory[self._place(count)].tobytes()

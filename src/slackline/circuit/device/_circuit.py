"""A simulated ring NIC as a RingDevice; this process stands for the links, which lose no frame."""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from slackline.circuit.device._driver import QueueDriver
from slackline.circuit.device._frames import FINAL, PARTIAL, RING_STREAMS, Outbox, RingPost, judge
from slackline.circuit.device._operation import RingOperation, RingPlace
from slackline.circuit.options import RingOptions
from slackline.circuit.registers import RING_COUNTERS, Code
from slackline.circuit.simulate import Simulation, cached_ring
from slackline.errors import InternalError
from slackline.wire import (
    FIRST_SEQUENCE,
    HEADER_BYTES,
    FrameFlag,
    FrameKind,
    Header,
    decode,
    encode,
    next_sequence,
    sequences_behind,
)

__all__ = ["RingCircuit"]

_QUIET, _LONGEST = 128, 10_000_000
_NEVER = 0xFFFFFFFF


class RingCircuit(Outbox):
    """A RingDevice that runs a QueuedRingNic in Verilator.

    Operations go through the NIC's queues, in this process's memory, as a driver would post them.
    This class numbers the incoming frames, and exchanges ACKs and GRANTs with the NIC in place of
    its two neighbours.
    """

    def __init__(
        self, options: RingOptions, place: RingPlace, *, simulation: Simulation | None = None
    ) -> None:
        """Configure and enable a simulated NIC: the NIC of `simulation`, or a new NIC.

        `simulation` must simulate a QueuedRingNic with these options; the device closes it.
        """
        super().__init__()
        self.options = options
        self._place = place
        self._host = RingPost(options, place.ranks)
        self._simulation = simulation or Simulation(cached_ring(options))
        self._driver = QueueDriver(self._simulation, options)
        self._open: dict[tuple[int, int], RingOperation] = {}
        self._waiting: dict[FrameFlag, deque[bytes]] = {PARTIAL: deque(), FINAL: deque()}
        self._next = {PARTIAL: FIRST_SEQUENCE, FINAL: FIRST_SEQUENCE}
        self._freed = dict(self._next)
        settings = {
            "job": place.job,
            "epoch": place.epoch,
            "rank": place.rank,
            "ranks": place.ranks,
            "plan": place.plan_id,
            "timeout": _NEVER,
            "control": 1,
        }
        for name, value in settings.items():
            self._driver.write(name, value)

    def post(self, operation: RingOperation) -> None:
        """Post an operation, and lend its memory to the circuit: see RingDevice."""
        self._host.post(operation)
        self._open[operation.key] = operation
        self._simulation.lend(operation.source, operation.total, writable=False)
        self._simulation.lend(operation.target, operation.total, writable=True)
        self._driver.post(operation)

    def receive(self, frame: bytes) -> None:
        """Take a frame from the predecessor: see RingDevice."""
        _, header = judge(frame, self.options, self._place)
        if header is None:
            # A frame that is not accepted goes to the circuit unchanged, so that the circuit counts
            # it.
            self._simulation.send(RING_STREAMS["rx"], frame)
            return
        self._waiting[header.flags].extend(self._host.in_order(frame, header))

    def advance(self) -> None:
        """Simulate until nothing is left to do without new input: see RingDevice."""
        # The circuit must open all posted operations first, because a frame of such an operation
        # may follow at once.
        while self._driver.waiting():
            self._simulation.step(16)
        self._simulation.step(8)
        working = True
        while working:
            self._give()
            self._simulation.settle(quiet=_QUIET, cycles=_LONGEST)
            working = self._take()
        if any(self._waiting.values()):
            raise InternalError("the circuit takes no more frames and reports no reason")

    def counters(self) -> Mapping[str, int]:
        """Return the NIC's counters, and the simulated cycles as `cycles`: see RingDevice."""
        counted = {name: self._driver.read(name) for name, _ in RING_COUNTERS}
        return counted | {"cycles": self._simulation.step(0)}

    def close(self) -> None:
        """Close the simulation: see RingDevice."""
        self._simulation.close()

    def _give(self) -> None:
        """Send waiting frames to the circuit, at most as many as the circuit has free slots."""
        for flags, waiting in self._waiting.items():
            while waiting and self._room(flags):
                frame = waiting.popleft()
                head = encode(replace(decode(frame), sequence=self._next[flags]))
                self._simulation.send(RING_STREAMS["rx"], head + frame[HEADER_BYTES:])
                self._next[flags] = next_sequence(self._next[flags])

    def _take(self) -> bool:
        """Acknowledge the circuit's frames, take its completions; return whether work is left."""
        sent = [frame for frame, _, _ in self._simulation.frames(RING_STREAMS["tx"])]
        last: dict[FrameFlag, int] = {}
        for frame in sent:
            header = decode(frame)
            if header.kind is FrameKind.GRANT:
                self._answer(replace(header, offset=1))
            else:
                self._out.append(frame)
                last[header.flags] = header.sequence
        for flags, sequence in last.items():
            acknowledge = next_sequence(sequence)
            self._answer(Header(kind=FrameKind.ACK, flags=flags, acknowledge=acknowledge))
        for frame, _, _ in self._simulation.frames(RING_STREAMS["rx_back"]):
            header = decode(frame)
            if header.kind is FrameKind.ACK:
                self._freed[header.flags] = header.acknowledge
        for each in self._driver.completions():
            if each.code is not Code.DONE:
                raise InternalError(f"the circuit refused {each.key}: {each.code.meaning}")
            self._complete(each.key)
        return bool(sent) or any(self._waiting[flags] and self._room(flags) for flags in self._next)

    def _room(self, flags: FrameFlag) -> bool:
        return sequences_behind(self._freed[flags], self._next[flags]) < self.options.slots

    def _answer(self, header: Header) -> None:
        """Send the circuit an ACK or a GRANT, as its successor in the ring would."""
        place = self._place
        said = replace(
            header,
            job=place.job,
            epoch=place.epoch,
            source=(place.rank + 1) % place.ranks,
            plan_id=place.plan_id,
        )
        self._simulation.send(RING_STREAMS["tx_back"], encode(said))

    def _complete(self, key: tuple[int, int]) -> None:
        operation = self._open.pop(key)
        self._simulation.take_back(operation.source, operation.total, writable=False)
        self._simulation.take_back(operation.target, operation.total, writable=True)
        self._host.close(key)
        self._completed.append(key)

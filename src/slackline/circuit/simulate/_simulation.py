"""A Verilated circuit driven from Python: frames and beats in, cycles run, frames and beats out."""

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from slackline.circuit.registers import Register
from slackline.circuit.simulate._build import build, stream_payloads
from slackline.circuit.simulate._trace import Trace, trace_of_environment
from slackline.circuit.simulate._verilog import Verilog
from slackline.env import circuit_trace
from slackline.errors import InternalError, TimeoutError, UsageError
from slackline.wire import FIELDS, HEADER_BYTES, decode

__all__ = ["Beats", "PacketCounts", "Simulation", "prepare"]

Beats = npt.NDArray[np.uint8]
"""An array of beats: each row has the bytes of one beat."""

_LENGTH = next(slice(f.offset, f.offset + f.width) for f in FIELDS if f.name == "length")
_UNFINISHED = -1
"""The answer of a call that returned so that this process can heed a signal."""
_U8 = ctypes.POINTER(ctypes.c_uint8)
_U32 = ctypes.POINTER(ctypes.c_uint32)
_U64 = ctypes.POINTER(ctypes.c_uint64)
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "open": (ctypes.c_void_p, []),
    "close": (None, [ctypes.c_void_p]),
    "trace": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64],
    ),
    "reset": (None, [ctypes.c_void_p]),
    "push": (None, [ctypes.c_void_p, ctypes.c_uint32, _U8, ctypes.c_size_t]),
    "send_frame": (
        None,
        [
            ctypes.c_void_p,
            ctypes.c_uint32,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_uint64,
            ctypes.c_int,
        ],
    ),
    "waiting": (ctypes.c_size_t, [ctypes.c_void_p, ctypes.c_uint32]),
    "pull": (ctypes.c_size_t, [ctypes.c_void_p, ctypes.c_uint32, _U8, _U64, ctypes.c_size_t]),
    "ready": (ctypes.c_size_t, [ctypes.c_void_p, ctypes.c_uint32]),
    "stall": (
        None,
        [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64],
    ),
    "hold": (
        None,
        [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64],
    ),
    "step": (ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_uint64]),
    "run": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint64]),
    "settle": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64],
    ),
    "lend": (None, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int]),
    "take_back": (None, [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int]),
    "latency": (None, [ctypes.c_void_p, ctypes.c_uint64]),
    "faults": (ctypes.c_uint64, [ctypes.c_void_p, _U64]),
    "serve": (
        ctypes.c_int,
        [
            ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_int),
            ctypes.c_size_t,
            ctypes.c_uint64,
            ctypes.c_uint64,
            ctypes.c_uint64,
            _U64,
        ],
    ),
    "read": (ctypes.c_uint32, [ctypes.c_void_p, ctypes.c_uint32]),
    "write": (None, [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32]),
    "snapshot": (None, [ctypes.c_void_p, _U32, ctypes.c_size_t, _U32]),
}


@dataclass(frozen=True)
class PacketCounts:
    """Counts of a simulation that serves packet sockets."""

    received: int
    """Packets that were offered to the circuit."""
    sent: int
    """Packets of the circuit that an interface took."""
    unsent: int
    """Packets of the circuit that an interface did not take."""
    dropped: int
    """Packets that were too long, or came while a port's queue was full."""
    cycles: int
    """Simulated cycles."""
    packet_ns: int
    """Processor time for packets: to receive, to cut into beats, to join and to send them."""
    cycle_ns: int
    """Processor time for the simulated cycles."""


class Simulation:
    """A simulation of one circuit, which starts after the circuit's reset and must be closed.

    The first simulation of a circuit compiles it, for seconds to minutes: see `build`. Streams are
    numbered in the order of the circuit's signature, inputs and outputs separately. A simulation is
    not thread-safe.
    """

    def __init__(self, verilog: Verilog, *, trace: Trace | None = None) -> None:
        """Open the circuit, and write the cycles of `trace` to its file.

        Without `trace`, the variable SLACKLINE_CIRCUIT_TRACE may ask for a file. A circuit that is
        traced for the first time is compiled once more, with code that writes traces. Raises
        UsageError if the file cannot be written.
        """
        trace = trace or trace_of_environment(verilog.name)
        library = ctypes.CDLL(str(build(verilog, traced=trace is not None)))
        self._calls: dict[str, Any] = {}
        for name, (result, arguments) in _PROTOTYPES.items():
            call = getattr(library, f"slackline_circuit_{name}")
            call.restype, call.argtypes = result, arguments
            self._calls[name] = call
        self._in_bytes, self._out_bytes = (
            [-(-port.width // 8) for port in stream_payloads(verilog, inward)]
            for inward in (True, False)
        )
        self._has_bus = any(port.name == "bus__address" for port in verilog.ports)
        self._begun: dict[int, tuple[Beats, npt.NDArray[np.uint64]]] = {}
        self._handle: int | None = self._calls["open"]()
        if trace is not None:
            try:
                self._trace(trace)
            except BaseException:
                self.close()
                raise

    def _trace(self, trace: Trace) -> None:
        trace.file.parent.mkdir(parents=True, exist_ok=True)
        cycles = (trace.cycles.start, trace.cycles.stop)
        if not self._call("trace", os.fsencode(trace.file), *cycles):
            raise UsageError(f"the trace {trace.file} cannot be written: name another file")

    def close(self) -> None:
        """Free the model; a second call does nothing."""
        if self._handle is not None:
            self._calls["close"](self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def push(self, stream: int, beats: Beats) -> None:
        """Append beats to the queue of an input; each row has the bytes of one payload."""
        self._check(stream)
        width = self._in_bytes[stream]
        if beats.ndim != 2 or beats.shape[1] != width:
            raise UsageError(f"a beat of input {stream} has {width} bytes, not {beats.shape[1:]}")
        flat = np.ascontiguousarray(beats)
        self._call("push", stream, flat.ctypes.data_as(_U8), len(flat))

    def send(self, stream: int, frame: bytes, *, not_before: int = 0, bad: bool = False) -> None:
        """Append a whole frame to the queue of an input, to be offered from cycle `not_before` on.

        With `bad`, the frame is marked as damaged, as a MAC would. So is a frame that ends within
        its last beat at another byte than its header says, as the bridge from a MAC would.
        """
        self._check(stream)
        wrong = bad or self._ends_elsewhere(stream, frame)
        self._call("send_frame", stream, frame, len(frame), not_before, wrong)

    def _ends_elsewhere(self, stream: int, frame: bytes) -> bool:
        length = int.from_bytes(frame[_LENGTH], "little")
        return (len(frame) - length) % (self._in_bytes[stream] - 1) != 0

    def waiting(self, stream: int) -> int:
        """Return the number of queued beats that an input has not taken yet."""
        self._check(stream)
        return int(self._call("waiting", stream))

    def pull(self, stream: int) -> tuple[Beats, npt.NDArray[np.uint64]]:
        """Return the beats that an output has given since the last call, and the cycle of each."""
        self._check(stream, output=True)
        count = int(self._call("ready", stream))
        beats = np.empty((count, self._out_bytes[stream]), np.uint8)
        cycles = np.empty(count, np.uint64)
        self._call("pull", stream, beats.ctypes.data_as(_U8), cycles.ctypes.data_as(_U64), count)
        return beats, cycles

    def frames(self, stream: int) -> list[tuple[bytes, int, int]]:
        """Return the whole frames of an output, each with the cycles of its first and last beat.

        The beats of an incomplete frame are kept for the next call. Raises InternalError if a frame
        is marked as damaged, or has more or fewer beats than its header says; use `pull` for such
        frames.
        """
        beats, cycles = self.pull(stream)
        if stream in self._begun:
            before = self._begun.pop(stream)
            beats, cycles = np.concatenate([before[0], beats]), np.concatenate([before[1], cycles])
        found, start = [], 0
        for end in np.flatnonzero(beats[:, -1] & 1):
            data = beats[start : end + 1, :-1].tobytes()
            if beats[end, -1] & 2:
                raise InternalError(f"output {stream} gave a frame that is marked as damaged")
            length = HEADER_BYTES + decode(data).length
            if -(-length // (beats.shape[1] - 1)) != end + 1 - start:
                raise InternalError(
                    f"output {stream} gave a frame of {len(data)} bytes in whole beats, but the "
                    f"frame's header says {length}"
                )
            found.append((data[:length], int(cycles[start]), int(cycles[end])))
            start = int(end) + 1
        if start < len(beats):
            self._begun[stream] = beats[start:], cycles[start:]
        return found

    def stall(self, stream: int, share: float, seed: int, *, output: bool = False) -> None:
        """Hold `valid` of an input, or `ready` of an output, low in a random share of cycles."""
        self._check(stream, output=output)
        if not 0 <= share < 1:
            raise UsageError(f"a share must be at least 0 and less than 1, not {share}")
        self._call("stall", output, stream, round(share * 65536), seed)

    def hold(self, stream: int, cycles: range, *, output: bool = False) -> None:
        """Hold `valid` of an input, or `ready` of an output, low in these cycles.

        A beat that was offered before stays offered until the circuit takes it.
        """
        self._check(stream, output=output)
        self._call("hold", output, stream, cycles.start, cycles.stop)

    def reset(self) -> None:
        """Reset the circuit once more, for four cycles, as a pin of a board would.

        All beats that wait at inputs, and those of outputs that were not pulled, are forgotten.
        Holds, stalls and lent memory stay as they are.
        """
        self._call("reset")
        self._begun.clear()

    def step(self, cycles: int) -> int:
        """Run for `cycles` cycles; return the number of the next cycle."""
        end = self._cycle + cycles
        # A call returns after a tenth of a second, so that Ctrl-C has its effect.
        while self._call("step", end) < end:
            pass
        return end

    @property
    def _cycle(self) -> int:
        return int(self._call("step", 0))

    def run(self, count: int, *, cycles: int, frames: bool = False) -> None:
        """Run until every output has `count` beats to pull or, with `frames`, `count` frames.

        Raises TimeoutError if that takes more than `cycles` cycles.
        """
        end = self._cycle + cycles
        while (ended := self._call("run", count, frames, end)) == _UNFINISHED:
            pass
        if not ended:
            what = "frames" if frames else "beats"
            raise TimeoutError(f"the circuit did not give {count} {what} in {cycles} cycles")

    def settle(self, *, quiet: int, cycles: int) -> None:
        """Run until nothing has moved on any stream for `quiet` cycles.

        Raises TimeoutError if that takes more than `cycles` cycles, and InternalError when the
        circuit used memory that was not lent to it.
        """
        start = self._cycle
        while (settled := self._call("settle", quiet, start, start + cycles)) == _UNFINISHED:
            pass
        address = ctypes.c_uint64()
        if faults := int(self._call("faults", ctypes.byref(address))):
            raise InternalError(
                f"the circuit went {faults} times beyond the memory it was lent, "
                f"first at 0x{address.value:X}"
            )
        if not settled:
            raise TimeoutError(f"the circuit was not quiet after {cycles} cycles")

    def lend(self, address: int, size: int, *, writable: bool) -> None:
        """Let the circuit's DMA streams read memory of this process, and write it if `writable`."""
        self._call("lend", address, size, writable)

    def take_back(self, address: int, size: int, *, writable: bool) -> None:
        """End a loan of memory that `lend` began with the same arguments."""
        self._call("take_back", address, size, writable)

    def memory_latency(self, cycles: int) -> None:
        """Set the cycles from a read request to the first beat of its data; the default is 0."""
        self._call("latency", cycles)

    def serve(
        self, sockets: Sequence[int], address: int, *, quiet: int, period: timedelta
    ) -> PacketCounts:
        """Serve packet sockets for about `period`; return the counts since the first call.

        `sockets` are descriptors of bound packet sockets, one for each port or one for all ports,
        and the same in each call. Port k has the MAC address `address` + k. The circuit stands
        still while nothing has moved for `quiet` cycles and no packet comes. Raises OSError if a
        socket fails.
        """
        descriptors = (ctypes.c_int * len(sockets))(*sockets)
        counts = (ctypes.c_uint64 * len(fields(PacketCounts)))()
        nanoseconds = period // timedelta(microseconds=1) * 1000
        arguments = (len(sockets), address, quiet, nanoseconds, counts)
        if error := self._call("serve", descriptors, *arguments):
            raise OSError(error, os.strerror(error))
        return PacketCounts(*counts)

    def read(self, address: int) -> int:
        """Read the register at a byte address; takes two cycles."""
        self._check_bus()
        return int(self._call("read", address))

    def snapshot(self, registers: Sequence[Register]) -> dict[str, int]:
        """Return the values of registers, by name, all as they are in this cycle.

        Time stands still: what the circuit does afterwards is the same as without the call.
        """
        self._check_bus()
        addresses = (ctypes.c_uint32 * len(registers))(*(each.address for each in registers))
        values = (ctypes.c_uint32 * len(registers))()
        self._call("snapshot", addresses, len(registers), values)
        return {each.name: value for each, value in zip(registers, values, strict=True)}

    def write(self, address: int, value: int) -> None:
        """Write the register at a byte address; takes two cycles."""
        self._check_bus()
        self._call("write", address, value)

    def _check(self, stream: int, *, output: bool = False) -> None:
        count = len(self._out_bytes if output else self._in_bytes)
        if not 0 <= stream < count:
            what = "output" if output else "input"
            raise UsageError(f"there is no {what} {stream}, only 0 to {count - 1}")

    def _check_bus(self) -> None:
        if not self._has_bus:
            raise UsageError("this circuit has no registers")

    def _call(self, name: str, *arguments: object) -> Any:
        if self._handle is None:
            raise UsageError("the simulation is closed")
        return self._calls[name](self._handle, *arguments)


def prepare(verilog: Verilog) -> None:
    """Compile the circuit now if it was not compiled yet, so that its simulations begin at once."""
    build(verilog, traced=circuit_trace() is not None)

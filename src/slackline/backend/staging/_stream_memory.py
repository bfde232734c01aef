"""CUDA streams that wait for a value in host memory, through the driver's stream memory operations.

The driver's function cuStreamWaitValue32 is described in the CUDA driver API, chapter "Stream
Memory Operations". torch offers no such function, so the driver's library is called directly.
"""

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from slackline.errors import InternalError, UsageError

__all__ = ["GateMemory", "StreamGate", "leave_captures_alone"]

_LIBRARY = "libcuda.so.1"
_WORDS = 1024
_GREATER_OR_EQUAL = 0
"""The driver's flag CU_STREAM_WAIT_VALUE_GEQ."""
_RELAXED = 2
"""The driver's mode CU_STREAM_CAPTURE_MODE_RELAXED."""


@dataclass(slots=True)
class StreamGate:
    """A gate in a CUDA stream: a word of host memory, and the value for which the stream waits.

    The values of a word only grow. A word of memory can therefore serve its next gate as soon as
    its previous gate is open, even if a stream has not yet read the word.
    """

    memory: "GateMemory"
    word: ctypes.c_uint32
    device_address: int
    value: int
    opened: bool = False

    @property
    def place(self) -> tuple[int, int]:
        return ctypes.addressof(self.word), self.value

    def open(self) -> None:
        """Store the value, so that a waiting stream goes on. Further calls do nothing."""
        if not self.opened:
            self.opened = True
            self.word.value = self.value
            self.memory.give_back(self)

    def hold(self, stream: int) -> None:
        """Make a CUDA stream, given by its handle, wait until the host has opened the gate."""
        wait = _driver("cuStreamWaitValue32_v2")
        _check(
            wait(
                ctypes.c_void_p(stream),
                ctypes.c_uint64(self.device_address),
                ctypes.c_uint32(self.value),
                ctypes.c_uint(_GREATER_OR_EQUAL),
            ),
            "cuStreamWaitValue32",
        )


class GateMemory:
    """Words of pinned host memory for the gates (waiting points of streams) of one device."""

    def __init__(
        self,
        allocate: Callable[[int], torch.Tensor],
        device_address: Callable[[int], int] | None = None,
    ) -> None:
        """Create the memory, still empty.

        `allocate(bytes)` returns pinned memory, and `device_address(address)` the address by which
        the device reaches it; None asks the driver.
        """
        self._allocate = allocate
        self._device_address = device_address or _device_address
        self._lock = threading.Lock()
        self._free: list[StreamGate] = []
        self._memory: list[torch.Tensor] = []

    def gate(self) -> StreamGate:
        """Return a closed gate, at which a stream waits until the host opens the gate.

        The device's CUDA context must be current in the calling thread.
        """
        with self._lock:
            if not self._free:
                self._grow()
            used = self._free.pop()
        return StreamGate(self, used.word, used.device_address, used.value + 1)

    def give_back(self, gate: StreamGate) -> None:
        """Let a later gate use the memory word of an opened gate."""
        with self._lock:
            self._free.append(gate)

    def _grow(self) -> None:
        words = self._allocate(4 * _WORDS)
        words.zero_()
        self._memory.append(words)
        base = words.data_ptr()
        there = self._device_address(base)
        for at in range(0, 4 * _WORDS, 4):
            word = ctypes.c_uint32.from_address(base + at)
            self._free.append(StreamGate(self, word, there + at, 0, opened=True))


def leave_captures_alone() -> None:
    """Allow the calling thread what would else spoil a graph that another thread captures.

    In the usual mode of a capture, no thread may ask for an event or allocate pinned memory.
    """
    mode = ctypes.c_uint(_RELAXED)
    exchange = _driver("cuThreadExchangeStreamCaptureMode")
    _check(exchange(ctypes.byref(mode)), "cuThreadExchangeStreamCaptureMode")


def _device_address(address: int) -> int:
    found = ctypes.c_uint64()
    translate = _driver("cuMemHostGetDevicePointer_v2")
    _check(
        translate(ctypes.byref(found), ctypes.c_void_p(address), ctypes.c_uint(0)),
        "cuMemHostGetDevicePointer",
    )
    return found.value


@cache
def _driver(name: str) -> Any:
    """Return a function of the CUDA driver; raise UsageError if the driver lacks it."""
    try:
        function = getattr(ctypes.CDLL(_LIBRARY), name)
    except (OSError, AttributeError) as error:
        raise UsageError(
            f"tensors on CUDA devices need a driver with {name}, from CUDA 11.7 on: {error}"
        ) from error
    function.restype = ctypes.c_int
    return function


def _check(result: int, name: str) -> None:
    if result != 0:
        raise InternalError(f"{name} failed with the driver's error {result}")

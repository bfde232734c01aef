"""Devices that add in place of the engine, and the thread between a device and the engine.

A device is a ring NIC, which adds its host's data to the frames that pass through it, or an
aggregation node, which
adds the data of several ranks. Both are simulated circuits, or bit-exact models in Python (twins).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol

import slackline._native as _native
from slackline.wire import HEADER_BYTES, Header, decode, encode, next_sequence

__all__ = ["Answer", "Device", "DeviceThread", "Key", "Node", "NodeHost", "Post"]

_log = logging.getLogger("slackline.nic")

_COUNTERS_S = 0.25
"""The shortest time between two readings of a device's counters."""

Key = tuple[int, int]
"""The identity of an operation: (tag, chunk)."""
Post = tuple[int, int, int, int, int, int, int, int]
"""An operation for a device: tag, chunk, the rank that starts it, dtype, total, payload bytes of a
frame, priority, and the address of the operation's memory.
"""
Answer = tuple[list[bytes], list[Key], list[Key]]
"""A device's output: frames to send, completed operations, and released withdrawn operations. The
device no longer uses the memory of completed and released operations."""


class Device(Protocol):
    """A device that adds for a group in place of the engine. One thread at a time may call it."""

    def take(
        self, posts: list[Post], frames: list[tuple[int, bytes]], withdrawn: list[Key]
    ) -> Answer:
        """Process new operations and frames until no work is left; return the output.

        The engine withdraws an operation that has failed. The memory of the operation stays valid
        until this call or a later call returns the operation as released.
        """

    def counters(self) -> Mapping[str, int]:
        """Return counts of the device's events since it was opened, by name."""

    def close(self) -> None:
        """Free the device; a second call does nothing."""


class DeviceThread:
    """A thread that passes operations and frames between a group of the engine and its device.

    If the device raises an error or returns invalid output, the group fails on every rank.
    """

    def __init__(
        self,
        native: _native.Group,
        device: Device,
        on_failure: Callable[[str], None] = lambda why: None,
        on_counters: Callable[[Mapping[str, int]], None] = lambda counters: None,
    ) -> None:
        """Start the thread; `on_counters` gets the device's counters, the last ones at its end."""
        self._native, self._device, self._on_failure = native, device, on_failure
        self._on_counters = on_counters
        self._thread = threading.Thread(target=self._run, name="slackline-device", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the thread; close the group or the engine before."""
        self._thread.join()

    def _run(self) -> None:
        try:
            next_s = 0.0
            while (work := self._native.device_work()) is not None:
                self._native.device_answer(*self._device.take(*work))
                if time.monotonic() >= next_s:
                    self._on_counters(self._device.counters())
                    next_s = time.monotonic() + _COUNTERS_S
            self._on_counters(self._device.counters())
        except Exception as error:
            _log.exception("the device of rank %d failed", self._native.rank)
            why = str(error) or type(error).__name__
            self._native.device_failed(why)
            self._on_failure(why)
        finally:
            self._device.close()
            self._native.device_closed()


class Node(Protocol):
    """The methods of an aggregation node that NodeHost calls."""

    def add(self, sets: list[list[bytes]]) -> list[bytes]:
        """Return the reduced frame of each set.

        A set contains one frame for each port, all with the same sequence number.
        """

    @property
    def remark(self) -> str:
        """A remark for the aggregator's last line about a group, or an empty string."""

    def close(self) -> None: ...


class NodeHost:
    """The Device of an aggregator: a node that adds sets of frames, one frame of each worker.

    Frames that are longer than the node's payload pass through the node in pieces.
    """

    def __init__(self, node: Node, ports: int, payload_bytes: int) -> None:
        self._node, self._ports, self._most = node, ports, payload_bytes
        self._number = 0
        self.added_bytes = 0
        """The bytes of payload that have passed through the node, of all workers together."""

    def take(
        self, posts: list[Post], frames: list[tuple[int, bytes]], withdrawn: list[Key]
    ) -> Answer:
        """Reduce sets of frames; see Device.take.

        A node gets no operations and remembers none, so only frames are passed and returned.
        """
        sets, counts = [], []
        for start in range(0, len(frames), self._ports):
            parts = [self._pieces(frame) for _, frame in frames[start : start + self._ports]]
            counts.append(len(parts[0]))
            for pieces in zip(*parts, strict=True):
                self._number = next_sequence(self._number)
                self.added_bytes += sum(len(data) for _, data in pieces)
                sets.append(
                    [encode(replace(head, sequence=self._number)) + data for head, data in pieces]
                )
        reduced = iter(self._node.add(sets) if sets else ())
        return [_joined([next(reduced) for _ in range(count)]) for count in counts], [], []

    def counters(self) -> Mapping[str, int]:
        """Return no counters: a node tells them in its remark."""
        return {}

    @property
    def remark(self) -> str:
        """A remark of the node for the aggregator's last line about a group."""
        return self._node.remark

    def close(self) -> None:
        """Free the aggregation node."""
        self._node.close()

    def _pieces(self, frame: bytes) -> list[tuple[Header, bytes]]:
        """Split a frame into frames whose payloads the aggregation node takes."""
        header, payload = decode(frame), frame[HEADER_BYTES:]
        return [
            (replace(header, offset=header.offset + at, length=len(part)), part)
            for at in range(0, len(payload), self._most)
            if (part := payload[at : at + self._most])
        ]


def _joined(frames: list[bytes]) -> bytes:
    """Return one frame with the payloads of `frames`, which are consecutive pieces of a frame."""
    payload = b"".join(frame[HEADER_BYTES:] for frame in frames)
    return encode(replace(decode(frames[0]), length=len(payload))) + payload

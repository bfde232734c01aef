"""A device behind a group: the thread that carries what the engine hands over, and the answers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import slackline._native as _native
from slackline.wire import HEADER_BYTES, Header, decode, encode

__all__ = ["Answer", "Carrier", "Device", "Key", "Node", "NodeHost", "Post"]

_log = logging.getLogger("slackline.nic")

Key = tuple[int, int]
"""What an operation is known by: tag and chunk."""
Post = tuple[int, int, int, int, int, int, int, int]
"""An operation: tag, chunk, the rank whose data open it, dtype, total, bytes of it in a frame,
priority, address of its memory."""
Answer = tuple[list[bytes], list[Key], list[Key]]
"""Frames to send; operations whose result is whole; withdrawn ones that it has let go of. The
memory of neither is used by the device any more."""


class Device(Protocol):
    """What adds for a group in the engine's stead. One thread at a time."""

    def take(
        self, posts: list[Post], frames: list[tuple[int, bytes]], withdrawn: list[Key]
    ) -> Answer:
        """Works on what is new until nothing is left to do.

        Nobody waits for a withdrawn operation any more, but its memory stays until the device says
        that it has let go, now or later.
        """

    def close(self) -> None:
        """Frees it; calling it again does nothing."""


class Carrier:
    """Carries between a group of the engine and its device, on a thread of its own.

    If the device raises, or gives what cannot be, the group fails on every rank.
    """

    def __init__(
        self,
        native: _native.Group,
        device: Device,
        on_failure: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._native, self._device, self._on_failure = native, device, on_failure
        self._thread = threading.Thread(target=self._run, name="slackline-device", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread; call it once the group or the engine is closed."""
        self._thread.join()

    def _run(self) -> None:
        try:
            while (work := self._native.device_work()) is not None:
                self._native.device_answer(*self._device.take(*work))
        except Exception as error:
            _log.exception("the device of rank %d failed", self._native.rank)
            why = str(error) or type(error).__name__
            self._native.device_failed(why)
            self._on_failure(why)
        finally:
            self._device.close()
            self._native.device_closed()


class Node(Protocol):
    """What this room needs of an aggregation node."""

    def add(self, sets: list[list[bytes]]) -> list[bytes]:
        """The reduced frame of each set; a set is a frame of each port, all of one number."""

    def close(self) -> None: ...


class NodeHost:
    """An aggregation node behind an aggregator's engine, which hands over whole sets of frames.

    Frames that are longer than the node takes go through it in pieces.
    """

    def __init__(self, node: Node, ports: int, payload_bytes: int) -> None:
        self._node, self._ports, self._most = node, ports, payload_bytes
        self._number = 0

    def take(
        self, posts: list[Post], frames: list[tuple[int, bytes]], withdrawn: list[Key]
    ) -> Answer:
        """See Device; nothing is posted to a node, and it forgets as it goes."""
        sets, counts = [], []
        for start in range(0, len(frames), self._ports):
            parts = [self._pieces(frame) for _, frame in frames[start : start + self._ports]]
            counts.append(len(parts[0]))
            for pieces in zip(*parts, strict=True):
                # 0 is for frames that are not numbered.
                self._number = self._number % 0xFFFFFFFF + 1
                sets.append(
                    [encode(replace(head, sequence=self._number)) + data for head, data in pieces]
                )
        reduced = iter(self._node.add(sets) if sets else ())
        return [_joined([next(reduced) for _ in range(count)]) for count in counts], [], []

    def close(self) -> None:
        """See Device."""
        self._node.close()

    def _pieces(self, frame: bytes) -> list[tuple[Header, bytes]]:
        header, payload = decode(frame), frame[HEADER_BYTES:]
        return [
            (replace(header, offset=header.offset + at, length=len(part)), part)
            for at in range(0, len(payload), self._most)
            if (part := payload[at : at + self._most])
        ]


def _joined(frames: list[bytes]) -> bytes:
    """One frame of several that follow each other."""
    payload = b"".join(frame[HEADER_BYTES:] for frame in frames)
    return encode(replace(decode(frames[0]), length=len(payload))) + payload

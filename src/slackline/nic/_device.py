"""A device behind a group: the thread that carries what the engine hands over, and the answers."""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

import slackline._native as _native
from slackline.wire import FIELDS, HEADER_BYTES, Header, decode, encode

__all__ = ["Carrier", "Device", "Node", "NodeHost", "Post", "RingHost", "RingNic"]

_log = logging.getLogger("slackline.nic")

Post = tuple[int, int, int, int, int, int]
"""An operation: tag, dtype, total, bytes of it in a frame, priority, address of its memory."""
Answer = tuple[list[bytes], list[int]]
"""Frames to send, and the tags of operations whose result is whole."""

_TAG = next(slice(each.offset, each.offset + each.width) for each in FIELDS if each.name == "tag")


class Device(Protocol):
    """What adds for a group in the engine's stead. One thread at a time."""

    def take(
        self, posts: list[Post], frames: list[tuple[int, bytes]], withdrawn: list[int]
    ) -> Answer:
        """Works on what is new until nothing is left to do.

        The memory of a withdrawn operation stays, but nobody reads it any more.
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


class RingNic(Protocol):
    """What this room needs of a ring NIC; see slackline.circuit.RingDevice."""

    def receive(self, frame: bytes) -> None: ...
    def advance(self) -> None: ...
    def frames(self) -> list[bytes]: ...
    def completed(self) -> list[tuple[int, int]]: ...
    def close(self) -> None: ...


_Nic = TypeVar("_Nic", bound=RingNic)


class RingHost(Generic[_Nic]):
    """The host's side of a ring NIC: it is given as many operations at once as it has room for.

    The most urgent go first. No two ranks can wait for each other: the others' NICs hear of an
    operation by rank 0's frames, so all of them have room for what rank 0's NIC has begun.
    """

    def __init__(
        self,
        open_nic: Callable[[], _Nic],
        post: Callable[[_Nic, Post], None],
        most: int,
    ) -> None:
        """`post` opens an operation at the NIC, which has room for `most`."""
        self._open_nic, self._post, self._most = open_nic, post, most
        self._nic = open_nic()
        self._open = set[int]()
        self._stale = set[int]()
        """Open, and given up: nothing more comes for them."""
        self._waiting: list[tuple[int, int, Post]] = []
        self._early: dict[int, list[bytes]] = {}
        """Frames of operations that wait."""
        self._count = 0

    def take(
        self, posts: list[Post], frames: list[tuple[int, bytes]], withdrawn: list[int]
    ) -> Answer:
        """See Device."""
        for post in posts:
            self._count += 1
            heapq.heappush(self._waiting, (post[4], self._count, post))
            self._early[post[0]] = []
        sent: list[bytes] = []
        done: list[int] = []
        self._begin()
        for _, frame in frames:
            tag = int.from_bytes(frame[_TAG], "little")
            if tag in self._early:
                self._early[tag].append(frame)
            else:
                self._nic.receive(frame)
        self._give_up(withdrawn)
        while True:
            self._nic.advance()
            sent += self._nic.frames()
            completed = [tag for tag, _ in self._nic.completed()]
            self._open.difference_update(completed)
            done += completed
            if not self._begin():
                return sent, done

    def close(self) -> None:
        """See Device."""
        self._nic.close()

    def _begin(self) -> bool:
        """Whether any operation that waited was given to the NIC."""
        any_begun = False
        while self._waiting and len(self._open) < self._most:
            post = heapq.heappop(self._waiting)[2]
            self._post(self._nic, post)
            self._open.add(post[0])
            for frame in self._early.pop(post[0]):
                self._nic.receive(frame)
            any_begun = True
        return any_begun

    def _give_up(self, withdrawn: Sequence[int]) -> None:
        gone = set(withdrawn)
        self._waiting = [each for each in self._waiting if each[2][0] not in gone]
        heapq.heapify(self._waiting)
        for tag in gone:
            self._early.pop(tag, None)
        self._stale = (self._stale | gone) & self._open
        if self._stale and self._stale == self._open:
            # A NIC cannot be told to forget an operation; a fresh one knows of none.
            self._nic.close()
            self._nic = self._open_nic()
            self._open, self._stale = set(), set()


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
        self, posts: list[Post], frames: list[tuple[int, bytes]], withdrawn: list[int]
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
        return [_joined([next(reduced) for _ in range(count)]) for count in counts], []

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

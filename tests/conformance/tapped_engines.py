"""Engines that are joined by plain sockets; every data frame on the sockets is recorded."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import slackline._native as native
from slackline.wire import HEADER_BYTES, FrameFlag, FrameKind, decode

_JOB = 7
_EPOCH = 1
_CLOSE_NS = 5 * 10**9


@dataclass(frozen=True)
class WireFrame:
    """The record of a data frame that one engine has sent to another."""

    chunk: int
    offset: int
    length: int
    partial: bool


class _Line:
    """A direction between two engines: a thread that forwards bytes and records the frames."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.frames: list[WireFrame] = []
        self._source, self._target = source, target
        self._pending = bytearray()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        forwards = True
        while data := self._receive():
            self._pending += data
            self._read()
            try:
                if forwards:
                    self._target.sendall(data)
            except BrokenPipeError:
                forwards = False  # The engine has closed before its peer's BYE frame arrived.
        if forwards:
            self._target.shutdown(socket.SHUT_WR)

    def _receive(self) -> bytes:
        try:
            return self._source.recv(1 << 18)
        except ConnectionResetError:
            return b""  # The engine has closed without reading all bytes of its peer.

    def _read(self) -> None:
        while len(self._pending) >= HEADER_BYTES:
            header = decode(self._pending)
            end = HEADER_BYTES + header.length
            if len(self._pending) < end:
                return
            if header.kind is FrameKind.DATA:
                partial = bool(header.flags & FrameFlag.PARTIAL)
                self.frames.append(WireFrame(header.chunk, header.offset, header.length, partial))
            del self._pending[:end]


class TappedEngines:
    """A group with one engine for each member; `frames[i, j]` has the frames from i to j."""

    def __init__(self, members: int, *, rank_order: bool, segment_bytes: int) -> None:
        self._engines = [
            native.Engine(64 << 20, segment_bytes, segment_bytes, 256 << 10, 0)
            for _ in range(members)
        ]
        self._sockets: list[socket.socket] = []
        self._lines: dict[tuple[int, int], _Line] = {}
        links = [[-1] * members for _ in range(members)]
        for low in range(members):
            for high in range(low + 1, members):
                ends = [socket.socketpair() for _ in range(2)]
                for (mine, peer), (theirs, ours) in zip(
                    ((low, high), (high, low)), ends, strict=True
                ):
                    engine = self._engines[mine]
                    links[mine][peer] = engine.add_link(f"to {peer}")
                    engine.add_rail(links[mine][peer], 0, "tcp", theirs.detach(), _JOB)
                    self._sockets.append(ours)
                self._lines[low, high] = _Line(ends[0][1], ends[1][1])
                self._lines[high, low] = _Line(ends[1][1], ends[0][1])
        self.groups = [
            engine.open_group(_EPOCH, member, links[member], rank_order)
            for member, engine in enumerate(self._engines)
        ]

    @property
    def frames(self) -> dict[tuple[int, int], Sequence[WireFrame]]:
        """The frames of each direction; the lists are complete once the engines are closed."""
        return {ends: tuple(line.frames) for ends, line in self._lines.items()}

    def close(self) -> None:
        """Close the engines and wait until every line has passed on its last byte."""
        for group in self.groups:
            group.close(_CLOSE_NS)
        for engine in self._engines:
            engine.close(_CLOSE_NS)
        for line in self._lines.values():
            line.thread.join()
        for each in self._sockets:
            each.close()


@contextmanager
def tapped_engines(
    members: int, *, rank_order: bool, segment_bytes: int
) -> Iterator[TappedEngines]:
    """Provide engines, and close them at the end; their frames may be read afterwards."""
    engines = TappedEngines(members, rank_order=rank_order, segment_bytes=segment_bytes)
    try:
        yield engines
    finally:
        engines.close()

"""Wires between two interfaces of this host that lose, double and delay packets (root)."""

import os
import random
import select
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Self

import pytest

_ALL_TYPES = 0x0003
_OUTGOING = 4
_LONGEST = 9216
_MADE = count()


def _allowed() -> bool:
    """Return whether this process may make a pair of virtual interfaces."""
    name = f"slp{os.getpid()}"
    command = ["ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}x"]
    try:
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return False
    except OSError:
        return False
    subprocess.run(["ip", "link", "delete", name], check=True)
    return True


needs_wires = pytest.mark.skipif(not _allowed(), reason="no virtual interface may be made")
"""The mark of tests that need wires: only root may make interfaces."""


class Wire:
    """Two interfaces, `ends`, that are joined by this process, which spoils packets on the way.

    `lost`, `doubled` and `late` are shares of the packets, in both directions; a late packet goes
    behind the next one of its direction.
    """

    def __init__(
        self, *, lost: float = 0, doubled: float = 0, late: float = 0, seed: int = 0
    ) -> None:
        self.lost, self.doubled, self.late = lost, doubled, late
        self.passed = 0
        """The packets that came, in both directions."""
        self._draw = random.Random(seed)
        self._actions: list[tuple[int, Callable[[], None]]] = []
        stem = f"sl{os.getpid() % 100_000}-{next(_MADE)}"
        self.ends = (f"{stem}a", f"{stem}b")
        inner = [f"{stem}c", f"{stem}d"]
        for end, middle in zip(self.ends, inner, strict=True):
            self._ip("link", "add", end, "type", "veth", "peer", "name", middle)
            for each in (end, middle):
                # Without an address, no other program of this host uses the interface.
                self._ip("link", "set", each, "addrgenmode", "none")
                self._ip("link", "set", each, "up")
        self._sockets = [socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) for _ in inner]
        for each, middle in zip(self._sockets, inner, strict=True):
            each.bind((middle, _ALL_TYPES))
            each.setblocking(False)
        self._stop = socket.socketpair()
        self._thread = threading.Thread(target=self._relay, name="wire", daemon=True)
        self._thread.start()

    def at(self, packets: int, action: Callable[[], None]) -> None:
        """Call `action` on a thread of its own when that many packets have come."""
        self._actions.append((packets, action))

    def close(self) -> None:
        self._stop[0].send(b"x")
        self._thread.join()
        for each in (*self._sockets, *self._stop):
            each.close()
        for end in self.ends:
            self._ip("link", "delete", end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    def _relay(self) -> None:
        waiting: list[bytes | None] = [None, None]
        stop = self._stop[1]
        while True:
            # A late packet leaves at the latest when nothing comes behind it.
            held = any(each is not None for each in waiting)
            ready, _, _ = select.select([*self._sockets, stop], [], [], 0.002 if held else None)
            if stop in ready:
                return
            for side in (0, 1):
                if self._sockets[side] in ready:
                    self._take(side, waiting)
                elif not ready and waiting[side] is not None:
                    self._send(1 - side, waiting[side])
                    waiting[side] = None

    def _take(self, side: int, waiting: list[bytes | None]) -> None:
        while True:
            try:
                packet, (_, _, kind, *_) = self._sockets[side].recvfrom(_LONGEST)
            except BlockingIOError:
                return
            if kind == _OUTGOING:
                continue
            self.passed += 1
            for due in [each for each in self._actions if each[0] <= self.passed]:
                self._actions.remove(due)
                threading.Thread(target=due[1]).start()
            fate = self._draw.random()
            if fate < self.lost:
                continue
            if fate < self.lost + self.late and waiting[side] is None:
                waiting[side] = packet
                continue
            self._send(1 - side, packet)
            if waiting[side] is not None:
                self._send(1 - side, waiting[side])
                waiting[side] = None
            if fate > 1 - self.doubled:
                self._send(1 - side, packet)

    def _send(self, side: int, packet: bytes | None) -> None:
        assert packet is not None
        # An interface whose queue is full loses the packet, as a switch would.
        with suppress(BlockingIOError):
            self._sockets[side].send(packet)

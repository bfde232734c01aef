"""TCP proxies under the test's control: engines connect through them, and a proxy may damage the
data."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from slackline.nic import Group, Store
from slackline.nic.connect._addresses import Interface, from_rows, to_rows
from slackline.testing import MemoryStore

Tamper = Callable[[int, str, int, bytes], bytes | None]
"""A function (connection, "there" or "back", offset, bytes) -> bytes to pass on. None cuts the
connection.

Connections are numbered from 0 in the order in which they were made. Offsets count the bytes of one
direction since the proxy was armed; before that, everything passes.
"""

_PROXIED = "slackline/rank/1"
"""The key of the address of the rank behind the proxy."""


class Proxy:
    """A proxy that forwards TCP connections to `port` on this host through the function
    `tamper`."""

    def __init__(self, port: int, tamper: Tamper) -> None:
        self._target = port
        self._tamper = tamper
        self.armed = False
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
        self._server.close()
        with self._lock:
            self._closed = True
            for sock in self._sockets:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                sock.close()

    def _accept(self) -> None:
        number = 0
        while True:
            try:
                caller, _ = self._server.accept()
            except OSError:
                return
            try:
                callee = socket.create_connection(("127.0.0.1", self._target))
            except ConnectionRefusedError:  # the target has closed its nic
                caller.close()
                continue
            with self._lock:
                if self._closed:  # closed while this connection was made
                    caller.close()
                    callee.close()
                    return
                self._sockets += [caller, callee]
                for sock in (caller, callee):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for way, source, sink in (("there", caller, callee), ("back", callee, caller)):
                threading.Thread(
                    target=self._pass, args=(number, way, source, sink), daemon=True
                ).start()
            number += 1

    def _pass(self, number: int, way: str, source: socket.socket, sink: socket.socket) -> None:
        offset = 0
        with contextlib.suppress(OSError):
            while data := source.recv(16384):
                passed: bytes | None = data
                if self.armed:
                    passed = self._tamper(number, way, offset, data)
                    offset += len(data)
                if passed is None:
                    break
                sink.sendall(passed)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def loopback(record: Mapping[str, Any]) -> list[Interface]:
    """Return the IPv4 loopback address in an endpoint descriptor, with the engine's port."""
    return [each for each in from_rows(record["interfaces"]) if each.address == "127.0.0.1"]


class ProxiedStore(MemoryStore):
    """A store that publishes the address of a proxy with `tamper` in place of rank 1's address, in
    a group of two.

    Rank 1 must read the store through `of`: it finds its own address there. A rank that finds
    another one tells its peer the right address, and a connection that was cut is made again past
    the proxy.
    """

    def __init__(self, tamper: Tamper) -> None:
        super().__init__()
        self._tamper = tamper
        self._own = MemoryStore()
        self.proxies: list[Proxy] = []

    def of(self, rank: int) -> Store:
        """Return the store as `rank` sees it."""
        return _OwnAddress(self, self._own) if rank == 1 else self

    def set(self, key: str, value: str, /) -> None:
        if key == _PROXIED:
            self._own.set(key, value)
            record = json.loads(value)
            (lo,) = loopback(record)
            self.proxies.append(Proxy(lo.port, self._tamper))
            record["interfaces"] = to_rows([replace(lo, port=self.proxies[-1].port)])
            value = json.dumps(record)
        super().set(key, value)

    def arm(self, group: Group) -> None:
        """Enable the fault from here on. All ranks must call this function."""
        group.barrier(blocking=True)
        for proxy in self.proxies:
            proxy.armed = True
        group.barrier(blocking=True)

    def close(self) -> None:
        for proxy in self.proxies:
            proxy.close()


class _OwnAddress:
    """The store of a rank that is behind a proxy and knows its own address."""

    def __init__(self, everyone: Store, own: Store) -> None:
        self._everyone, self._own = everyone, own

    def set(self, key: str, value: str, /) -> None:
        self._everyone.set(key, value)

    def get(self, key: str, /) -> bytes:
        return (self._own if key == _PROXIED else self._everyone).get(key)

    def check(self, keys: list[str], /) -> bool:
        return self._everyone.check(keys)


def flip(at: int, connection: int, way: str) -> Tamper:
    """Return a tamper function that inverts the byte at offset `at`."""

    def tamper(number: int, direction: str, offset: int, data: bytes) -> bytes:
        if (number, direction) != (connection, way) or not offset <= at < offset + len(data):
            return data
        spoiled = bytearray(data)
        spoiled[at - offset] ^= 0xFF
        return bytes(spoiled)

    return tamper


def cut(at: int, connection: int, way: str) -> Tamper:
    """Return a tamper function that passes `at` bytes and then ends the connection in both
    directions."""

    def tamper(number: int, direction: str, offset: int, data: bytes) -> bytes | None:
        if (number, direction) == (connection, way) and offset + len(data) > at:
            return None
        return data

    return tamper

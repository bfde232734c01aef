"""Plain TCP between the ranks, to measure how much the lab's wire can carry."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

PIECE_BYTES = 256 << 10


class PlainTcp:
    """A rank's sockets: call `listen` at all ranks, then `connect`, then `pour`, then `hang_up`."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def listen(self) -> int:
        """Listen on a new port, and return the port."""
        self._server = socket.create_server(("0.0.0.0", 0))
        return self._server.getsockname()[1]

    def connect(self, targets: list[list[tuple[str, int]]], arrivals: list[int]) -> None:
        """Connect to the targets of this rank, and accept as many connections as it has arrivals.

        `targets` and `arrivals` are lists by rank.
        """
        self._out = [socket.create_connection(target) for target in targets[self._rank]]
        self._in = [self._server.accept()[0] for _ in range(arrivals[self._rank])]

    def pour(self, nbytes: int) -> tuple[int, int]:
        """Send `nbytes` over each connection and receive as much; return start and end in ns."""
        threads = len(self._out) + len(self._in)
        begin = threading.Barrier(threads + 1)
        with ThreadPoolExecutor(threads or 1) as pool:
            done = [pool.submit(_send, sock, nbytes, begin) for sock in self._out]
            done += [pool.submit(_receive, sock, nbytes, begin) for sock in self._in]
            begin.wait()
            start_ns = time.monotonic_ns()
            for each in done:
                each.result()
        return start_ns, time.monotonic_ns()

    def hang_up(self) -> None:
        """Close all sockets."""
        for sock in (*self._out, *self._in, self._server):
            sock.close()


def _send(sock: socket.socket, nbytes: int, begin: threading.Barrier) -> None:
    piece = memoryview(bytes(PIECE_BYTES))
    begin.wait()
    while nbytes > 0:
        nbytes -= sock.send(piece[:nbytes])


def _receive(sock: socket.socket, nbytes: int, begin: threading.Barrier) -> None:
    piece = bytearray(PIECE_BYTES)
    begin.wait()
    while nbytes > 0:
        got = sock.recv_into(piece)
        if got == 0:
            raise ConnectionError(f"the stream ended {nbytes} bytes early")
        nbytes -= got

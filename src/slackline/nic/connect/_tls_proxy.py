"""The TLS proxy of an engine: one thread between its plain sockets and all TLS connections.

    engine <- socket pair -> proxy <- TLS over TCP -> the peer's proxy

An error of any kind ends the connection that it belongs to, with a reason, and no other. When one
side closes, the proxy passes the close on to the other side at once. A TCP stream that
ends without TLS's close_notify also counts as closed. A truncated stream is still detected, because
the engine's protocol marks its end by a BYE frame.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable

from slackline.nic.connect._sockets import closed_in_children

__all__ = ["TlsProxy"]

_log = logging.getLogger("slackline.nic")

_CHUNK_BYTES = 256 << 10
_TURN_BYTES = 1 << 20
_PAIR_BUFFER_BYTES = 1 << 20
_LAST_WORDS_S = 1.0
_SILENCE_MS = 2000
"""The time within which the peer's kernel must acknowledge data. The engine sees only the socket
pair, so the engine cannot notice a network that drops everything."""

Broken = Callable[[str], None]


class _Direction:
    """The buffer of one direction: bytes that were read and not written yet."""

    def __init__(self) -> None:
        self._memory = bytearray(_CHUNK_BYTES)
        self.buffer = memoryview(self._memory)
        self.waiting = self.buffer[:0]
        self.ended = False
        """Whether the source has closed its sending side."""


class _ProxiedConnection:
    """A proxied connection.

    `run` moves all bytes that can move without blocking. Then `wants` returns the events to wait
    for.
    """

    def __init__(self, pair: socket.socket, tls: ssl.SSLSocket, broken: Broken) -> None:
        self.pair, self.tls, self.broken = pair, tls, broken
        self._out, self._in = _Direction(), _Direction()
        self._tls_reads_to_write = False
        self._farewell = False
        self.unfinished = False
        """Whether `run` stopped at its byte limit and must be called again without waiting."""

    def run(self) -> bool:
        """Move bytes in both directions; return whether the connection is still open.

        Raises OSError when TLS fails.
        """
        left = _TURN_BYTES
        while left > 0 and (moved := self._outward() + self._inward()):
            left -= moved
        self.unfinished = left <= 0
        return not (self._out.ended and not self._out.waiting)

    def wants(self) -> tuple[int, int]:
        """Return the selector events to wait for on the socket pair and on the TLS socket."""
        pair = 0 if self._out.ended or self._out.waiting else selectors.EVENT_READ
        pair |= selectors.EVENT_WRITE if self._in.waiting else 0
        reads = self._tls_reads_to_write or not (self._in.ended or self._in.waiting)
        tls = selectors.EVENT_READ if reads else 0
        writes = bool(self._out.waiting) and not self._tls_reads_to_write
        return pair, tls | (selectors.EVENT_WRITE if writes else 0)

    def close(self) -> None:
        """Close both sockets, whatever state TLS is in."""
        try:
            if self._out.ended:
                # `unwrap` raises OSError without the peer's close_notify, ValueError without TLS.
                with contextlib.suppress(OSError, ValueError):
                    self.tls.unwrap()
        finally:
            self.tls.close()
            self.pair.close()

    def _outward(self) -> int:
        """Move bytes from the engine to the peer; return the number sent."""
        direction = self._out
        if not direction.waiting and not direction.ended:
            try:
                got = self.pair.recv_into(direction.buffer)
            except BlockingIOError:
                return 0
            except ConnectionResetError:
                got = 0  # The engine closed its end with unread bytes.
            direction.ended = got == 0
            direction.waiting = direction.buffer[:got]
        sent = 0
        self._tls_reads_to_write = False
        try:
            while direction.waiting:
                now = self.tls.send(direction.waiting)
                direction.waiting = direction.waiting[now:]
                sent += now
        except ssl.SSLWantReadError:
            self._tls_reads_to_write = True
        except ssl.SSLWantWriteError:
            pass
        return sent

    def _inward(self) -> int:
        """Move bytes from the peer to the engine; return the number sent."""
        direction = self._in
        if not direction.waiting and not direction.ended:
            got = 0
            try:
                while got < _CHUNK_BYTES:
                    now = self.tls.recv_into(direction.buffer[got:])
                    if now == 0:
                        direction.ended = True
                        break
                    got += now
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                pass
            direction.waiting = direction.buffer[:got]
        sent = 0
        try:
            while direction.waiting:
                now = self.pair.send(direction.waiting)
                direction.waiting = direction.waiting[now:]
                sent += now
        except BlockingIOError:
            return sent
        except (BrokenPipeError, ConnectionResetError):
            direction.ended, direction.waiting = (
                True,
                direction.buffer[:0],
            )  # The engine closed its end.
            return sent
        if direction.ended and not self._farewell:
            self._farewell = True
            with contextlib.suppress(OSError):
                self.pair.shutdown(socket.SHUT_WR)
        return sent


class TlsProxy:
    """The TLS proxy's thread, which serves all connections and starts with the first connection."""

    def __init__(self) -> None:
        self._wake, self._woken = map(closed_in_children, socket.socketpair())
        try:
            self._selector = selectors.DefaultSelector()
        except BaseException:
            for sock in (self._wake, self._woken):
                sock.close()
            raise
        self._woken.setblocking(False)
        self._lock = threading.Lock()
        self._new: list[_ProxiedConnection] = []
        self._connections: set[_ProxiedConnection] = set()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._selector.register(self._woken, selectors.EVENT_READ, None)

    def add(self, tls: ssl.SSLSocket, broken: Broken) -> socket.socket:
        """Take over a TLS socket and return a plain socket that leads through it.

        When TLS fails, `broken(reason)` is called on the proxy's thread before the plain socket is
        closed.
        """
        ours, theirs = map(closed_in_children, socket.socketpair())
        for sock in (ours, theirs):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PAIR_BUFFER_BYTES)
        ours.setblocking(False)
        tls.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_MS)
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="slackline-tls", daemon=True)
                try:
                    thread.start()
                except BaseException:
                    for sock in (ours, theirs):
                        sock.close()
                    raise
                self._thread = thread
            self._new.append(_ProxiedConnection(ours, tls, broken))
        self._wake.send(b"\0")
        return theirs

    def stop(self) -> None:
        """Forward the bytes that the engine has written, close all connections, end the thread."""
        self._stopping = True
        if self._thread is not None:
            self._wake.send(b"\0")
            self._thread.join()
            self._thread = None
        self._selector.close()
        self._wake.close()
        self._woken.close()

    def _serve(self) -> None:
        try:
            while not self._stopping:
                try:
                    self._turn(None)
                except Exception as error:
                    self._start_anew(f"the TLS proxy failed: {error!r}")
            deadline = time.monotonic() + _LAST_WORDS_S
            while self._turn(0) and time.monotonic() < deadline:
                pass
        finally:
            for connection in tuple(self._connections):
                self._drop(connection)

    def _start_anew(self, reason: str) -> None:
        """End every connection after an error that belongs to none, and serve later ones."""
        _log.exception("the TLS proxy met an error of its own: all its connections end")
        for connection in tuple(self._connections):
            self._break(connection, reason)
            self._drop(connection)
        self._selector.close()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ, None)

    def _turn(self, timeout_s: float | None) -> bool:
        """Wait for events and run the ready connections; return whether there were any."""
        again = {connection for connection in self._connections if connection.unfinished}
        ready = {key.data for key, _ in self._selector.select(0 if again else timeout_s)} | again
        if None in ready:
            ready.discard(None)
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
            with self._lock:
                fresh, self._new = self._new, []
            self._connections.update(fresh)
            ready.update(fresh)
        for connection in ready:
            self._advance(connection)
        return bool(ready)

    def _advance(self, connection: _ProxiedConnection) -> None:
        """Run one connection, then wait for its next events or close it.

        After an error the engine drops the rail and connects it again. An error that is no OSError
        is a defect, or a lack of memory, so it is logged with its traceback.
        """
        try:
            if connection.run():
                sockets = (connection.pair, connection.tls)
                for sock, events in zip(sockets, connection.wants(), strict=True):
                    self._watch(sock, events, connection)
                return
        except OSError as error:
            self._break(connection, f"TLS failed: {error}")
        except Exception as error:
            _log.exception("the TLS proxy met an error of its own: one connection ends")
            self._break(connection, f"the TLS proxy failed: {error!r}")
        self._drop(connection)

    def _break(self, connection: _ProxiedConnection, reason: str) -> None:
        """Tell the engine why a connection ends."""
        try:
            connection.broken(reason)
        except Exception:  # The engine then learns it from the end of the socket pair.
            _log.exception("the engine could not be told that %s", reason)

    def _drop(self, connection: _ProxiedConnection) -> None:
        """Stop watching a connection, and close it."""
        self._connections.discard(connection)
        try:
            for sock in (connection.pair, connection.tls):
                self._watch(sock, 0, connection)
            connection.close()
        except Exception:
            _log.exception("the TLS proxy could not close a connection in good order")

    def _watch(self, sock: socket.socket, events: int, connection: _ProxiedConnection) -> None:
        """Set the events that the selector waits for on a socket; 0 stops watching the socket."""
        known = self._selector.get_map().get(sock)
        if known is None and events:
            self._selector.register(sock, events, connection)
        elif known is not None and not events:
            self._selector.unregister(sock)
        elif known is not None and known.events != events:
            self._selector.modify(sock, events, connection)

"""Tests of callers that lack the job's secret or replay the messages of another caller."""

import contextlib
import json
import socket
import ssl
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from fault_proxy import loopback

from slackline.errors import SlacklineError, TimeoutError
from slackline.nic import Group, NativeNic, NicOptions
from slackline.nic.connect._addresses import to_rows
from slackline.nic.connect._handshake import HandshakeMessage, call, fresh_nonce
from slackline.nic.connect._messages import Hello, TransportParameters, frame, parse, unframe
from slackline.testing import MemoryStore, run_ranks
from slackline.wire import HEADER_BYTES, DType, ReduceOp

OVER_TCP = NicOptions(rails=("tcp",), arena_bytes=64 << 20)
PATIENCE_S = 60.0


class OpenStore(MemoryStore):
    """A store that lets the test see the address of every rank."""

    def __init__(self) -> None:
        super().__init__()
        self.records: dict[int, dict[str, Any]] = {}

    def set(self, key: str, value: str, /) -> None:
        if key.startswith("slackline/rank/"):
            self.records[int(key.rpartition("/")[2])] = json.loads(value)
        super().set(key, value)

    def port(self, rank: int) -> int:
        return loopback(self.records[rank])[0].port


class Tap:
    """A proxy that forwards connections to one rank and records the first conversation."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.heard = bytearray()
        self._sockets = [self._server]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        caller, _ = self._server.accept()
        callee = socket.create_connection(("127.0.0.1", self._port))
        self._sockets += [caller, callee]
        for source, sink, keep in ((caller, callee, True), (callee, caller, False)):
            threading.Thread(target=self._pass, args=(source, sink, keep), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, keep: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if keep:
                    self.heard += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()


class TappedStore(OpenStore):
    """A store that makes rank 0 connect to rank 1 through a recording proxy."""

    tap: Tap

    def __init__(self) -> None:
        super().__init__()
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def set(self, key: str, value: str, /) -> None:
        if key != "slackline/rank/1":
            super().set(key, value)
            return
        self.records[1] = json.loads(value)
        self.tap = Tap(self.port(1))
        self._closing.callback(self.tap.close)
        told = json.loads(value)
        told["interfaces"] = to_rows([replace(loopback(told)[0], port=self.tap.port)])
        MemoryStore.set(self, key, json.dumps(told))


def sum_is_right(group: Group) -> None:
    data = np.ones(1000, np.float32)
    at = data.ctypes.data
    group.all_reduce(at, at, data.size, DType.FLOAT32, ReduceOp.SUM, blocking=True)
    assert set(data.tolist()) == {float(group.size)}


def frames(data: bytes, count: int) -> list[bytes]:
    """Return the first `count` HELLO frames in `data`."""
    found = []
    for _ in range(count):
        length = HEADER_BYTES + unframe(data).length
        found.append(data[:length])
        data = data[length:]
    return found


def hear(sock: socket.socket) -> bytes:
    """Return the payload of the next HELLO frame, or b"" if the connection ends instead."""
    sock.settimeout(PATIENCE_S)
    with sock.makefile("rb") as stream:
        head = stream.read(HEADER_BYTES)
        return stream.read(unframe(head).length) if head else b""


def test_a_caller_that_repeats_what_it_has_overheard_is_refused() -> None:
    store = TappedStore()

    def body(group: Group) -> None:
        sum_is_right(group)
        if group.rank == 0:
            first, third = frames(bytes(store.tap.heard), 2)
            with socket.create_connection(("127.0.0.1", store.port(1))) as sock:
                sock.sendall(first)
                assert parse_answer(hear(sock)) == store.records[1]["engine"]
                sock.sendall(third)
                assert hear(sock) == b"", "turned away"
        sum_is_right(group)
        assert group.counters()["rails_lost"] == 0

    with store:
        run_ranks(2, body, options=OVER_TCP, store=store)


def parse_answer(payload: bytes) -> str:
    return str(json.loads(payload[:-32])["engine"])


def test_a_caller_that_knows_everything_but_the_secret_is_refused() -> None:
    store = TappedStore()

    def body(group: Group) -> None:
        sum_is_right(group)
        if group.rank == 0:
            job = unframe(bytes(store.tap.heard)).job
            hello = Hello(
                engine=store.records[0]["engine"],
                peer=store.records[1]["engine"],
                rail=0,
                kind="tcp",
                nonce=fresh_nonce(),
            )
            handshake = call(hello, bytes(32), lambda: (TransportParameters(), ()))
            with socket.create_connection(("127.0.0.1", store.port(1))) as sock:
                sock.sendall(frame(next(handshake).payload, job))
                reply = hear(sock)
                with pytest.raises(SlacklineError, match=r"^the proof is wrong"):
                    handshake.send(HandshakeMessage(payload=reply))
                sock.sendall(frame(b"{}" + bytes(32), job))
                assert hear(sock) == b"", "turned away"
        sum_is_right(group)
        assert group.counters()["rails_lost"] == 0

    with store:
        run_ranks(2, body, options=OVER_TCP, store=store)


def test_an_overheard_opening_tells_nothing_secret() -> None:
    with TappedStore() as store:
        run_ranks(2, sum_is_right, options=OVER_TCP, store=store)
    first, _ = frames(bytes(store.tap.heard), 2)
    hello = parse(Hello, first[HEADER_BYTES:])
    assert (hello.engine, hello.peer) == (store.records[0]["engine"], store.records[1]["engine"])
    secret = store.get("slackline/secret")
    assert secret not in store.tap.heard
    assert bytes.fromhex(secret.decode()) not in store.tap.heard


def test_unauthenticated_peers_that_dribble_bytes_delay_nobody() -> None:
    store = OpenStore()
    stop = threading.Event()
    dribblers: list[threading.Thread] = []

    def dribble(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            for byte in frame(b"x" * 4000, 1):
                try:
                    sock.sendall(bytes([byte]))
                except OSError:
                    return
                if stop.wait(0.05):
                    return

    class Besieged(OpenStore):
        def set(self, key: str, value: str, /) -> None:
            super().set(key, value)
            if key.startswith("slackline/rank/"):
                port = self.port(int(key.rpartition("/")[2]))
                for _ in range(20):
                    dribblers.append(threading.Thread(target=dribble, args=(port,)))
                    dribblers[-1].start()

    store = Besieged()
    try:
        run_ranks(3, sum_is_right, options=OVER_TCP, store=store, timeout=timedelta(seconds=20))
    finally:
        stop.set()
        for thread in dribblers:
            thread.join()


def test_more_unauthenticated_peers_than_are_served_keep_nobody_out() -> None:
    """Check that the oldest unauthenticated connections are closed in favour of new callers."""
    store = OpenStore()
    unauthenticated: list[socket.socket] = []

    def body(group: Group) -> None:
        if group.rank == 0:
            unauthenticated.extend(
                socket.create_connection(("127.0.0.1", store.port(1))) for _ in range(400)
            )
        group.barrier(blocking=True)
        if group.rank == 0:
            group._engine.drop_rail(0, 0, "the test says so")  # type: ignore[attr-defined]
        sum_is_right(group)

    try:
        run_ranks(2, body, options=OVER_TCP, store=store)
    finally:
        for sock in unauthenticated:
            sock.close()


def test_a_rank_with_another_key_does_not_get_in(tmp_path: Path) -> None:
    keys = [tmp_path / "ours", tmp_path / "theirs"]
    for number, key in enumerate(keys):
        key.write_bytes(bytes([number]) * 32)
    store = MemoryStore()
    raised: dict[int, BaseException] = {}

    def run(rank: int) -> None:
        nic = NativeNic(NicOptions(rails=("tcp",), arena_bytes=64 << 20, key=keys[rank]))
        try:
            nic.open_group(store, rank, 2, timeout=timedelta(seconds=2))
        except SlacklineError as error:
            raised[rank] = error
        finally:
            nic.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    for rank in (0, 1):
        assert type(raised[rank]) is TimeoutError
        assert str(raised[rank]).startswith(
            f"the rendezvous Timed out waiting for rank {1 - rank} ("
        )


def test_ranks_with_the_same_key_get_in(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    run_ranks(2, sum_is_right, options=NicOptions(arena_bytes=64 << 20, key=key))


def test_a_certificate_that_was_not_announced_is_refused() -> None:
    pytest.importorskip("cryptography", reason="TLS needs the package cryptography")
    from slackline.nic.connect._tls import Identity

    ours, theirs, other = (Identity(name) for name in ("ours", "theirs", "other"))
    assert shake(ours, theirs.certificate, theirs, ours.certificate) == (None, None)
    for client, server in ((other, theirs), (ours, other)):
        errors = shake(client, theirs.certificate, server, ours.certificate)
        assert any(isinstance(error, ssl.SSLError) for error in errors)


def shake(client: Any, expects: bytes, server: Any, awaits: bytes) -> tuple[Any, Any]:
    """Return the exception on each side when both speak TLS and exchange a byte in each
    direction."""
    a, b = socket.socketpair()
    found: list[Any] = [None, None]

    def run(side: int, sock: socket.socket, context: ssl.SSLContext) -> None:
        sock.settimeout(PATIENCE_S)
        try:
            with context.wrap_socket(sock, server_side=side == 1) as secret:
                secret.sendall(b"x")
                secret.recv(1)
        except OSError as error:
            found[side] = error

    threads = [
        threading.Thread(target=run, args=(0, a, client.context(expects, server=False))),
        threading.Thread(target=run, args=(1, b, server.context(awaits, server=True))),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return found[0], found[1]

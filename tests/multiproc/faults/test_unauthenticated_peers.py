"""Tests that connections from outside the job are closed, and that they delay no rank."""

import json
import logging
import socket

import numpy as np
import pytest
from fault_proxy import loopback

from slackline.nic import Group, NicOptions
from slackline.nic.connect._messages import Hello, frame, text_of
from slackline.testing import MemoryStore, run_ranks
from slackline.wire import DType, FrameKind, Header, ReduceOp, encode

GARBAGE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 10
NO_HELLO = encode(Header(kind=FrameKind.DATA, job=12345, length=100)) + bytes(100)
NO_JSON = frame(bytes(100), 12345)
TOO_LONG = encode(Header(kind=FrameKind.HELLO, job=12345, length=1 << 30))
ANOTHER_JOB = frame(
    text_of(Hello(engine="0" * 32, peer="1" * 32, rail=0, kind="tcp", nonce="0" * 64)), 12345
)
STRANGERS = {
    GARBAGE: "a frame opens with 0x4C53, not 0x4547",
    NO_HELLO: "the frame must be a HELLO, not DATA",
    NO_JSON: "a HELLO is not JSON",
    TOO_LONG: "a HELLO of 1073741824 bytes is too long",
}
"""The messages that are refused at once, with the reasons."""
SILENT = (b"", b"SL", ANOTHER_JOB)
"""The messages after which the listener keeps the connection open for a while."""


class BesiegedStore(MemoryStore):
    """A store that opens foreign connections to every rank as soon as the rank publishes its
    address."""

    def __init__(self, *, early: bool) -> None:
        super().__init__()
        self._early = early
        self.sockets: list[socket.socket] = []
        self.ports: list[int] = []

    def set(self, key: str, value: str, /) -> None:
        if key.startswith("slackline/rank/"):
            self.ports.append(loopback(json.loads(value))[0].port)
            if self._early:
                self.besiege(self.ports[-1])
        super().set(key, value)

    def besiege(self, port: int) -> None:
        for what in (*SILENT, *STRANGERS):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.sendall(what)
            self.sockets.append(sock)

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()


def sum_of_ones(group: Group) -> float:
    data = np.ones(100_000, np.float32)
    at = data.ctypes.data
    group.all_reduce(at, at, data.size, DType.FLOAT32, ReduceOp.SUM, blocking=True)
    assert (data == data[0]).all()
    return float(data[0])


OVER_TCP = NicOptions(rails=("tcp",), arena_bytes=64 << 20)


def test_unauthenticated_peers_at_the_rendezvous_are_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = BesiegedStore(early=True)
    with caplog.at_level(logging.WARNING, "slackline.nic"):
        assert run_ranks(3, sum_of_ones, options=OVER_TCP, store=store) == [3, 3, 3]
    store.close()
    told = [record.getMessage() for record in caplog.records]
    assert any(
        text.startswith("refused an unauthenticated peer from ('127.0.0.1', ") for text in told
    )
    assert {text.split(": ", 1)[1] for text in told} == set(STRANGERS.values())


def test_unauthenticated_peers_that_come_later_change_nothing() -> None:
    store = BesiegedStore(early=False)

    def body(group: Group) -> float:
        group.barrier(blocking=True)
        if group.rank == 0:
            for port in store.ports:
                store.besiege(port)
        group.barrier(blocking=True)
        return sum_of_ones(group)

    assert run_ranks(3, body, options=OVER_TCP, store=store) == [3, 3, 3]
    store.close()

"""Tests of the resources beside a rail (a path to a peer): the companion connection of a UDP rail,
and TCP's congestion control."""

import asyncio
import os
import socket
from typing import Any

import pytest
from waiting import until

import slackline._native as _native
from slackline.errors import UsageError
from slackline.nic import Group, NativeNic, NicOptions
from slackline.nic.connect._connection_manager import ConnectionManager
from slackline.nic.connect._rail_handle import LocalContext, ParametersMaker, _watch_companion
from slackline.testing import run_ranks


class Told:
    """A listener that records the reasons for the loss of a rail."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def broke(self, reason: str) -> None:
        self.reasons.append(reason)


@pytest.mark.parametrize(
    ("end", "why"), [("close", "closed"), ("speak", "broke the protocol on"), ("reset", "lost")]
)
def test_a_udp_rail_ends_with_the_connection_beside_it(end: str, why: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    ours.setblocking(False)
    if end == "speak":
        theirs.send(b"?")
    if end == "reset":
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    if end != "speak":
        theirs.close()
    told: Any = Told()
    with ours:
        asyncio.run(asyncio.wait_for(_watch_companion(ours, told), 20))
    theirs.close()
    (reason,) = told.reasons
    assert reason.startswith(f"the peer {why}")
    assert reason.endswith("the connection beside the rail")


def controls() -> list[str]:
    """Return the congestion control of every connected TCP socket of this process."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            descriptor = os.dup(int(name))
        except OSError:  # another thread has closed the descriptor
            continue
        try:
            sock = socket.socket(fileno=descriptor)
        except OSError:  # another thread has reused its number
            os.close(descriptor)
            continue
        with sock:
            if sock.family != socket.AF_INET or sock.type != socket.SOCK_STREAM:
                continue
            try:
                sock.getpeername()
            except OSError:
                continue
            told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            found.append(told.rstrip(b"\0").decode())
    return found


def test_both_ends_of_tcp_rails_have_the_congestion_control_that_was_asked_for() -> None:
    def body(group: Group) -> list[str]:
        group.barrier(blocking=True)
        found = controls()
        group.barrier(blocking=True)
        return found

    options = NicOptions(rails=("tcp",), congestion="reno", arena_bytes=64 << 20)
    before = len(controls())
    for found in run_ranks(3, body, options=options):
        assert found.count("reno") >= 6
        assert len(found) - before >= 6


def engine() -> _native.Engine:
    return _native.Engine(
        arena_bytes=64 << 20,
        wire_segment_bytes=128 << 10,
        memory_segment_bytes=256 << 10,
        eager_bytes=256 << 10,
        spin_microseconds=0,
    )


@pytest.mark.parametrize("end", ["failed", "taken"])
def test_a_ring_of_a_failed_handshake_is_free_once_the_other_end_cannot_write_to_it(
    end: str,
) -> None:
    here, manager = engine(), ConnectionManager()
    manager.start()
    context = LocalContext(
        engine_name="here",
        engine=here,
        manager=manager,
        identity=None,
        tls_proxy=None,
        interfaces=lambda: (),
    )
    before = here.counters()["ring_bytes"]
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    async def shake_hands() -> int:
        with ParametersMaker(context, "shm", ours) as maker:
            maker.make()
            held = here.counters()["ring_bytes"]
            if end == "taken":
                maker.take_ring()
        ours.close()
        return held

    try:
        held = manager.run(shake_hands())
        assert held - before >= 256 << 10
        theirs.settimeout(20)
        assert theirs.recv(1) == b"", "the other end was not told"
        assert here.counters()["ring_bytes"] == held, "the other end may still write"
        theirs.close()
        left = before if end == "failed" else held
        until(lambda: here.counters()["ring_bytes"] == left, "the ring was not given back")
    finally:
        theirs.close()
        manager.stop()
        here.close(0)
    assert here.counters()["ring_bytes"] == left


def test_a_congestion_control_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(
        UsageError, match=r"^the congestion control 'comet' cannot be used here \(.*reno"
    ):
        NativeNic(NicOptions(congestion="comet"))

"""Tests of the handshake channel: late answers, and descriptors before and after the proof."""

import asyncio
import fcntl
import gc
import os
import socket
import time
import weakref
from collections.abc import Iterator

import pytest

from slackline.errors import LinkError
from slackline.nic.connect._handshake import HandshakeMessage
from slackline.nic.connect._handshake_channel import Attempt, HandshakeChannel, dial
from slackline.nic.connect._messages import frame
from slackline.nic.connect._sockets import past, ready

LIMIT_S = 0.05


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    a, b = socket.socketpair()
    with a, b:
        yield a, b


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_an_answer_that_a_busy_process_reads_too_late_counts(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """Check with an event loop that stands still until the time is over."""
    ours, theirs = ends

    async def receive() -> bytes:
        channel = HandshakeChannel(ours, LIMIT_S)
        waiting = asyncio.ensure_future(channel.receive())
        await asyncio.sleep(0)  # It waits for the answer now.
        theirs.sendall(frame(b"late", 1))
        time.sleep(2 * LIMIT_S)
        _, message = await waiting
        return message.payload

    assert asyncio.run(receive()) == b"late"


@pytest.mark.parametrize("part", [b"", frame(b"cut", 1)[:-1]], ids=["nothing", "part"])
def test_a_peer_that_does_not_answer_in_time_is_an_error(
    ends: tuple[socket.socket, socket.socket], part: bytes
) -> None:
    ours, theirs = ends

    async def receive() -> None:
        theirs.sendall(part)
        await HandshakeChannel(ours, LIMIT_S).receive()

    with pytest.raises(LinkError, match=r"^the handshake was not answered in time$"):
        asyncio.run(receive())


def test_a_wait_ends_at_its_time(ends: tuple[socket.socket, socket.socket]) -> None:
    async def wait() -> bool:
        until_s = asyncio.get_running_loop().time() + LIMIT_S
        before = past(until_s)
        await ready(ends[0], until_s=until_s)
        return past(until_s) and not before

    assert asyncio.run(wait())


def test_descriptors_that_come_before_the_proof_are_not_held(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends
    before = open_descriptors()
    with open(os.devnull) as null:
        socket.send_fds(theirs, [frame(b"hello", 1)], [null.fileno()] * 2)
    assert asyncio.run(HandshakeChannel(ours).receive())[1].payload == b"hello"
    assert open_descriptors() <= before


def test_descriptors_after_the_proof_are_closed_on_exec(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = ends

    async def exchange() -> tuple[int, ...]:
        channel, other = HandshakeChannel(ours), HandshakeChannel(theirs)
        await other.send(HandshakeMessage(payload=b"terms", fds=(0, 1)), 1)
        assert (await channel.receive())[1] == HandshakeMessage(payload=b"terms")
        fds = (await channel.receive_fds()).fds
        assert all(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC for fd in fds)
        channel.close()
        return fds

    fds = asyncio.run(exchange())
    assert len(fds) == 2
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


@pytest.mark.parametrize(("sent", "told"), [(1, 1), (3, 2)])
def test_another_number_of_descriptors_is_an_error(
    ends: tuple[socket.socket, socket.socket], sent: int, told: int
) -> None:
    ours, theirs = ends
    socket.send_fds(theirs, [b"F"], [0] * sent)

    async def receive() -> None:
        channel = HandshakeChannel(ours)
        try:
            await channel.receive_fds()
        finally:
            channel.close()

    before = open_descriptors()
    with pytest.raises(
        LinkError, match=rf"^{told} descriptors came for shared memory, not exactly 2$"
    ):
        asyncio.run(receive())
    assert open_descriptors() <= before


@pytest.mark.parametrize("attempts", range(4))
def test_a_failed_call_keeps_nothing_of_its_callers_alive(attempts: int) -> None:
    """Check without the cyclic garbage collector. The callers' variables include the engine."""

    class Engine:
        pass

    engine = Engine()
    lives = weakref.ref(engine)

    async def call(engine: Engine, where: list[Attempt]) -> None:
        with pytest.raises((OSError, LinkError)):
            await dial(where, 10)

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        where = [Attempt(address="127.0.0.1", port=closed.getsockname()[1])] * attempts
        gc.disable()
        try:
            asyncio.run(call(engine, where))
            del engine
            assert lives() is None
        finally:
            gc.enable()

"""Tests of the limits of unauthenticated connections, and of the log of refused ones."""

import asyncio
import logging
import os
import socket

import pytest

from slackline.nic.connect._admissions import Admissions, Refusals
from slackline.nic.connect._connection_manager import ConnectionManager
from slackline.nic.connect._handshake_channel import HandshakeChannel
from slackline.nic.connect._listener import Listener
from slackline.nic.connect._messages import Hello


async def nobody_is_expected(
    channel: HandshakeChannel, code: int, payload: bytes, hello: Hello
) -> bool:
    return False


def admitted(count: int) -> tuple[int, int]:
    """Admit connections that say nothing; return how many are open at most, and the refused."""

    async def run() -> tuple[int, int]:
        admissions, displaced = Admissions(), 0
        most, ends = 0, []
        for _ in range(count):
            ours, theirs = socket.socketpair()
            ends.append(theirs)
            channel = HandshakeChannel(ours)

            async def wait(channel: HandshakeChannel = channel) -> None:
                try:
                    await channel.receive()
                finally:
                    channel.close()

            displaced += len(admissions.admit(ConnectionManager(), channel, wait()))
            most = max(most, len(admissions))
            await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            end.close()
        return most, displaced

    return asyncio.run(run())


def test_the_oldest_of_256_connections_is_displaced() -> None:
    assert admitted(300) == (256, 44)


def test_half_of_the_descriptors_are_left_to_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check with a limit so low that half of the descriptors are in use already."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (2, 2))
    assert admitted(50) == (8, 42)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_a_process_of_another_user_is_refused_before_it_says_anything(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = Listener("engine-of-root", ())
    if (child := os.fork()) == 0:
        os.setresuid(65534, 65534, 65534)
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(listener.unix_name)
            os._exit(len(sock.recv(1)))

    async def refuse() -> None:
        listener.open(ConnectionManager(), nobody_is_expected)
        acceptor = listener._acceptor
        assert acceptor is not None
        while not acceptor.refusals.count:
            await asyncio.sleep(0.001)
        assert len(acceptor.admissions) == 0
        listener.close()

    with caplog.at_level(logging.WARNING, "slackline.nic"):
        asyncio.run(refuse())
    assert os.waitpid(child, 0)[1] == 0, "the connection was closed"
    assert [record.getMessage() for record in caplog.records] == [
        "refused an unauthenticated peer from a Unix socket: its process belongs to user 65534, "
        "not to this one's"
    ]


def test_refused_connections_are_logged_ten_times_and_then_each_hundredth(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals = Refusals(logging.getLogger("slackline.nic"), "refused %s: %s")
    with caplog.at_level(logging.WARNING, "slackline.nic"):
        for _ in range(300):
            refusals.add_from("here", "why")
    assert refusals.count == 300
    assert [record.getMessage() for record in caplog.records] == ["refused here: why"] * 13

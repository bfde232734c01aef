"""Tests of an engine's listener, and of the resources that remain after a connection."""

import asyncio
import socket

import pytest

from slackline.nic.connect._addresses import Interface
from slackline.nic.connect._connection_manager import ConnectionManager
from slackline.nic.connect._handshake_channel import HandshakeChannel
from slackline.nic.connect._listener import Listener
from slackline.nic.connect._messages import Hello


async def nobody_is_expected(
    channel: HandshakeChannel, code: int, payload: bytes, hello: Hello
) -> bool:
    return False


def test_a_caller_who_comes_as_the_nic_closes_is_hung_up_on() -> None:
    async def close_before_the_welcome(caller: socket.socket) -> None:
        listener = Listener("engine", ())
        listener.open(ConnectionManager(), nobody_is_expected)
        caller.connect(listener.unix_name)
        acceptor = listener._acceptor
        assert acceptor is not None
        while not acceptor.admissions:
            await asyncio.sleep(0)  # one pass of the loop does not yet begin the connection's task
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        listener.close()

    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(5)
        asyncio.run(close_before_the_welcome(caller))
        assert caller.recv(1) == b""


def test_a_listener_has_a_port_on_each_chosen_address_and_on_no_other() -> None:
    chosen = Interface(name="lo", address="127.0.0.5", prefix=8)
    listener = Listener("engine", [chosen])
    try:
        (listened,) = listener.interfaces
        socket.create_connection(("127.0.0.5", listened.port)).close()
        for other in ("127.0.0.1", "127.0.0.6"):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((other, listened.port))
    finally:
        listener.close()

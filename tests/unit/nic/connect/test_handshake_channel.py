"""Tests of the connects that lead to a handshake: several attempts, and the device of a call."""

import asyncio
import socket

import pytest

from slackline.errors import LinkError
from slackline.nic.connect._address_exchange import read_addresses
from slackline.nic.connect._handshake_channel import arrival_device, dial, ends_of
from slackline.nic.connect._messages import TransportParameters
from slackline.nic.connect._paths import Attempt

LIMIT_S = 20.0


def closed_port() -> int:
    """Return a TCP port of the loopback device that no process listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_next_attempt_follows_a_refused_one(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:
        attempts = [
            Attempt(address="127.0.0.1", port=closed_port()),
            Attempt(address=address, port=server.getsockname()[1], source=address),
        ]
        with asyncio.run(dial(attempts, LIMIT_S)) as sock:
            assert sock.getpeername()[:2] == server.getsockname()[:2]
            assert ends_of(sock) == (address, address)
            accepted, _ = server.accept()
            with accepted:
                assert arrival_device(accepted) == socket.if_nametoindex("lo")


def test_a_refusal_tells_more_than_an_address_that_cannot_be_used() -> None:
    attempts = [
        Attempt(address="127.0.0.1", port=closed_port()),
        Attempt(address="127.0.0.1", port=1, source="203.0.113.77"),
    ]
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(dial(attempts, LIMIT_S))
    with pytest.raises(OSError, match="Cannot assign requested address"):
        asyncio.run(dial(attempts[1:], LIMIT_S))


def test_a_connect_without_any_address_is_an_error() -> None:
    with pytest.raises(LinkError, match=r"^there is no address to connect to$"):
        asyncio.run(dial([], LIMIT_S))


@pytest.mark.parametrize("text", ["", "{}", "[[1]]", '[["lo", "127.0.0", 8, 1, 1, "lo", false]]'])
def test_wrong_addresses_of_a_peer_are_a_link_error(text: str) -> None:
    with pytest.raises(LinkError, match=r"^the peer's addresses are wrong: "):
        read_addresses(TransportParameters(interfaces=text))

"""Tests of an aggregator's server, and of wrong or hostile requests to it."""

import asyncio
import logging
import queue
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackline.errors import LinkError, UsageError
from slackline.nic.aggregator import Aggregator, AggregatorOptions
from slackline.nic.connect._addresses import Interface
from slackline.nic.connect._handshake import HandshakeMessage, fresh_nonce
from slackline.nic.connect._handshake_channel import HandshakeChannel, dial
from slackline.nic.connect._paths import Attempt
from slackline.nic.connect._rail_set import RailSet, RailState
from slackline.nic.connect._rendezvous import EndpointDescriptor, host_identity
from slackline.nic.offload._aggregation_protocol import (
    AggregationRequest,
    AggregationResponse,
    Proof,
    write_descriptor,
)

OPTIONS = {
    "wire_segment_bytes": 128 << 10,
    "eager_bytes": 256 << 10,
    "connections": 1,
    "checksums": "wire",
    "tls": "off",
    "rails": ["tcp"],
}
LIMIT_S = 30
KEY = b"sixteen bytes, or more"
NAMED = "127.0.0.2"
"""An address that workers name, but do not connect from."""


@pytest.fixture
def aggregator() -> Iterator[Aggregator]:
    node = Aggregator(AggregatorOptions(host="127.0.0.1", port=0, workers=4, groups=2))
    node.start()
    yield node
    node.close()


def request(
    node: Aggregator,
    options: dict[str, object],
    workers: int = 2,
    port: int = 9,
    *,
    address: str = "127.0.0.1",
    key: bytes = b"",
) -> AggregationResponse:
    """Ask for a group of workers that listen at `address` and `port`. Return the answer."""

    async def call() -> AggregationResponse:
        channel = HandshakeChannel(
            await dial([Attempt(address=node.address[0], port=node.address[1])], LIMIT_S)
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                mine = AggregationRequest(nonce=fresh_nonce(), workers=workers)
                await channel.send(HandshakeMessage(payload=mine.write()), 0)
                _, message = await channel.receive()
                proof = Proof(
                    key, mine.nonce, AggregationRequest.read(message.payload).nonce, calls=True
                )
                for number in range(workers):
                    payload = write_descriptor(descriptor(number, options, address, port))
                    await channel.send(HandshakeMessage(payload=proof.seal(payload)), 0)
                _, message = await channel.receive()
                return AggregationResponse.read(proof.open(message.payload))
        finally:
            channel.close()

    return asyncio.run(call())


def descriptor(
    number: int, options: dict[str, object], address: str, port: int
) -> EndpointDescriptor:
    interface = Interface(name="lo", address=address, prefix=8, port=port)
    return EndpointDescriptor(
        engine=f"{number:032x}",
        host=host_identity(),
        interfaces=(interface,),
        chosen=False,
        options=options,
    )


@pytest.mark.parametrize("missing", sorted(OPTIONS))
def test_workers_that_leave_out_an_option_are_refused_by_its_name(
    aggregator: Aggregator, missing: str
) -> None:
    response = request(aggregator, {key: value for key, value in OPTIONS.items() if key != missing})
    lack = "the descriptors that the workers sent lack the fields"
    assert response.refusal == f"this group cannot be served: {lack} {missing}"


@pytest.mark.parametrize(
    ("name", "value"), [("connections", "many"), ("tls", 3), ("rails", "tcp"), ("rails", ["ipx"])]
)
def test_an_option_that_makes_no_sense_is_refused(
    aggregator: Aggregator, name: str, value: object
) -> None:
    response = request(aggregator, OPTIONS | {name: value})
    assert response.refusal.startswith("this group cannot be served: ")


def test_no_more_groups_are_served_than_was_said(aggregator: Aggregator) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # workers that never send anything
        port = silent.getsockname()[1]
        offers = [request(aggregator, OPTIONS, port=port) for _ in range(3)]
    assert [response.refusal for response in offers] == ["", "", "the limit of 2 groups is reached"]


def test_an_aggregator_serves_one_group_at_least() -> None:
    with pytest.raises(UsageError, match="groups must be at least 1, not 0"):
        AggregatorOptions(host="127.0.0.1", port=0, workers=4, groups=0)


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Aggregator]:
    key = tmp_path / "key"
    key.write_bytes(KEY)
    node = Aggregator(AggregatorOptions(host="127.0.0.1", port=0, workers=4, key=key))
    node.start()
    yield node
    node.close()


@pytest.fixture
def named() -> Iterator[socket.socket]:
    """A server at the address that the workers name."""
    with socket.create_server((NAMED, 0)) as server:
        yield server


def nobody_has_connected(server: socket.socket) -> bool:
    server.setblocking(False)
    try:
        server.accept()
    except BlockingIOError:
        return True
    return False


def test_without_a_key_no_address_is_dialled_that_a_worker_only_names(
    aggregator: Aggregator, named: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = queue.SimpleQueue[str]()
    attempts = RailSet.attempts

    def observed(rails: RailSet, rail: RailState) -> tuple[Attempt, ...]:
        try:
            return attempts(rails, rail)
        except LinkError as error:
            refusals.put(str(error))
            raise

    monkeypatch.setattr(RailSet, "attempts", observed)
    port = named.getsockname()[1]
    assert request(aggregator, OPTIONS, port=port, address=NAMED).refusal == ""
    assert refusals.get(timeout=LIMIT_S) == (
        f"not connected to {NAMED}: the peer has named the address, but not connected from it, and "
        "there is no key"
    )
    aggregator.close()
    assert nobody_has_connected(named)


def test_with_a_key_an_address_is_dialled_that_a_worker_with_the_key_names(
    keyed: Aggregator, named: socket.socket
) -> None:
    port = named.getsockname()[1]
    assert request(keyed, OPTIONS, port=port, address=NAMED, key=KEY).refusal == ""
    named.settimeout(LIMIT_S)
    named.accept()[0].close()


def test_with_a_key_nothing_is_begun_for_a_request_without_it(
    keyed: Aggregator, named: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(LinkError, match="the connection was closed during the handshake"):
        request(keyed, OPTIONS, port=named.getsockname()[1], address=NAMED)
    keyed.close()
    assert nobody_has_connected(named)
    assert [each.getMessage() for each in caplog.records] == [
        "turned away 127.0.0.1: the proof is wrong: the other end does not have the same key"
    ]


def test_closing_does_not_wait_for_workers_that_never_connect(
    named: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Close a node that waits an hour for its workers; the time limit of the test is shorter."""
    monkeypatch.setattr("slackline.nic.aggregator._service._RENDEZVOUS_S", 3600.0)
    caplog.set_level(logging.INFO, "slackline.nic.aggregator")
    node = Aggregator(AggregatorOptions(host="127.0.0.1", port=0, workers=4))
    node.start()
    assert request(node, OPTIONS, port=named.getsockname()[1], address=NAMED).refusal == ""
    node.close()
    (said,) = (each.getMessage() for each in caplog.records)
    assert said.endswith(": over after 0 operations, 0 B added: the aggregator was stopped")

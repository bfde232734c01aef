"""Tests of an aggregator's server, and of wrong or hostile requests to it."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from slackline.errors import UsageError
from slackline.nic.connect._addresses import Interface
from slackline.nic.connect._handshake import HandshakeMessage, fresh_nonce
from slackline.nic.connect._handshake_channel import HandshakeChannel, dial
from slackline.nic.connect._paths import Attempt
from slackline.nic.connect._rendezvous import EndpointDescriptor, host_identity
from slackline.nic.offload._aggregation_protocol import (
    AggregationRequest,
    AggregationResponse,
    Proof,
    write_descriptor,
)
from slackline.nic.offload._aggregator import Aggregator, AggregatorOptions

OPTIONS = {
    "wire_segment_bytes": 128 << 10,
    "eager_bytes": 256 << 10,
    "connections": 1,
    "checksums": "wire",
    "tls": "off",
    "rails": ["tcp"],
}
LIMIT_S = 30


@pytest.fixture
def aggregator() -> Iterator[Aggregator]:
    node = Aggregator(AggregatorOptions(host="127.0.0.1", port=0, workers=4, groups=2))
    node.start()
    yield node
    node.close()


def request(
    node: Aggregator, options: dict[str, object], workers: int = 2, port: int = 9
) -> AggregationResponse:
    """Ask for a group of workers that listen at `port`. Return the answer."""

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
                    b"", mine.nonce, AggregationRequest.read(message.payload).nonce, calls=True
                )
                for number in range(workers):
                    payload = write_descriptor(descriptor(number, options, port))
                    await channel.send(HandshakeMessage(payload=proof.seal(payload)), 0)
                _, message = await channel.receive()
                return AggregationResponse.read(proof.open(message.payload))
        finally:
            channel.close()

    return asyncio.run(call())


def descriptor(number: int, options: dict[str, object], port: int) -> EndpointDescriptor:
    interface = Interface(name="lo", address="127.0.0.1", prefix=8, port=port)
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

"""Tests of an aggregator's server, and of wrong or hostile requests to it."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from slackline.errors import UsageError
from slackline.nic._addresses import Interface
from slackline.nic._aggregator import Aggregator, AggregatorOptions
from slackline.nic._ask import Ask, Offer, Proof, write_record
from slackline.nic._handshake import Said, fresh_nonce
from slackline.nic._line import Line, dial
from slackline.nic._paths import Attempt
from slackline.nic._rendezvous import Record, host_identity

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


def ask(node: Aggregator, options: dict[str, object], workers: int = 2, port: int = 9) -> Offer:
    """Ask for a group of workers that listen at `port`. Return the answer."""

    async def call() -> Offer:
        line = Line(await dial([Attempt(address=node.address[0], port=node.address[1])], LIMIT_S))
        try:
            async with asyncio.timeout(LIMIT_S):
                mine = Ask(nonce=fresh_nonce(), workers=workers)
                await line.say(Said(payload=mine.write()), 0)
                _, said = await line.hear()
                proof = Proof(b"", mine.nonce, Ask.read(said.payload).nonce, calls=True)
                for number in range(workers):
                    payload = write_record(record(number, options, port))
                    await line.say(Said(payload=proof.seal(payload)), 0)
                _, said = await line.hear()
                return Offer.read(proof.open(said.payload))
        finally:
            line.close()

    return asyncio.run(call())


def record(number: int, options: dict[str, object], port: int) -> Record:
    interface = Interface(name="lo", address="127.0.0.1", prefix=8, port=port)
    return Record(
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
    offer = ask(aggregator, {key: value for key, value in OPTIONS.items() if key != missing})
    told = f"it cannot serve this group: the workers do not say their {missing}"
    assert offer.refusal == told


@pytest.mark.parametrize(
    ("name", "value"), [("connections", "many"), ("tls", 3), ("rails", "tcp"), ("rails", ["ipx"])]
)
def test_an_option_that_makes_no_sense_is_refused(
    aggregator: Aggregator, name: str, value: object
) -> None:
    offer = ask(aggregator, OPTIONS | {name: value})
    assert offer.refusal.startswith("it cannot serve this group: ")


def test_no_more_groups_are_served_than_was_said(aggregator: Aggregator) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # workers that never send anything
        port = silent.getsockname()[1]
        offers = [ask(aggregator, OPTIONS, port=port) for _ in range(3)]
    assert [offer.refusal for offer in offers] == ["", "", "it serves 2 groups already"]


def test_an_aggregator_serves_one_group_at_least() -> None:
    with pytest.raises(UsageError, match="groups must be at least 1, not 0"):
        AggregatorOptions(host="127.0.0.1", port=0, workers=4, groups=0)

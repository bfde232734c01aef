"""Tests of the conversation in which a group requests an aggregator: it needs the shared key."""

import pytest

from slackline.errors import LinkError
from slackline.nic.connect._addresses import Interface
from slackline.nic.connect._rendezvous import EndpointDescriptor
from slackline.nic.offload._aggregation_protocol import (
    AggregationRequest,
    AggregationResponse,
    Proof,
    read_descriptor,
    rendezvous_with_aggregator,
    write_descriptor,
)

NONCES = ("a" * 64, "b" * 64)


def descriptor(engine: str, *, aggregates: bool = False) -> EndpointDescriptor:
    interface = Interface(name="eth0", address="10.0.0.1", prefix=24, port=7)
    return EndpointDescriptor(
        engine=engine,
        host="here",
        interfaces=(interface,),
        chosen=False,
        options={"rails": ["tcp"]},
        aggregates=aggregates,
    )


def proofs(caller: bytes = b"key", listener: bytes = b"key") -> tuple[Proof, Proof]:
    ours, theirs = NONCES
    return Proof(caller, ours, theirs, calls=True), Proof(listener, theirs, ours, calls=False)


def test_each_end_opens_what_the_other_has_sealed_in_order() -> None:
    caller, listener = proofs()
    for text in (b"one", b"two"):
        assert listener.open(caller.seal(text)) == text
    assert caller.open(listener.seal(b"three")) == b"three"


@pytest.mark.parametrize("what", ["another key", "a changed byte", "said again", "said back"])
def test_what_was_not_sealed_for_this_place_is_refused(what: str) -> None:
    caller, listener = proofs(listener=b"other" if what == "another key" else b"key")
    sealed = caller.seal(b"one")
    if what == "a changed byte":
        sealed = b"0" + sealed[1:]
    elif what == "said again":
        listener.open(sealed)
    elif what == "said back":
        listener = caller
    with pytest.raises(LinkError) as caught:
        listener.open(sealed)
    assert str(caught.value) == "the proof is wrong: the other end does not have the same key"


def test_requests_descriptors_and_responses_are_read_as_they_were_written() -> None:
    request = AggregationRequest(nonce=NONCES[0], workers=4)
    assert AggregationRequest.read(request.write()) == request
    assert read_descriptor(write_descriptor(descriptor("x"))) == descriptor("x")
    response = AggregationResponse(
        nonces=NONCES, most_bytes=9, descriptor=descriptor("node", aggregates=True)
    )
    assert AggregationResponse.read(response.write()) == response
    assert AggregationResponse.read(
        AggregationResponse(refusal="no").write()
    ) == AggregationResponse(refusal="no")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"nothing", "a message of an aggregator or worker is not JSON"),
        (b"[1]", "a message of an aggregator or worker is not a JSON object"),
        (b'{"protocol": 1}', "the other end speaks aggregator protocol 1, not 3"),
        (b'{"protocol": 3, "nonce": "a"}', "a request to an aggregator has a wrong nonce"),
        (
            AggregationRequest(nonce="a" * 64, workers=300).write(),
            "a request to an aggregator has a wrong number of workers: 300",
        ),
    ],
)
def test_a_wrong_request_is_refused_with_the_reason(text: bytes, message: str) -> None:
    with pytest.raises(LinkError) as caught:
        AggregationRequest.read(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", [b"{}", b'{"interfaces": 3}', b'{"interfaces": [{}]}'])
def test_a_wrong_descriptor_or_response_is_refused(text: bytes) -> None:
    with pytest.raises(LinkError):
        read_descriptor(text)
    with pytest.raises(LinkError):
        AggregationResponse.read(text)


def test_the_secret_of_the_links_needs_the_key_and_both_nonces() -> None:
    response = AggregationResponse(nonces=NONCES, descriptor=descriptor("node", aggregates=True))
    other = AggregationResponse(nonces=(NONCES[0], "c" * 64), descriptor=response.descriptor)
    workers = (descriptor("x"), descriptor("y"))
    secrets = {
        rendezvous_with_aggregator(b"key", response, workers).secret,
        rendezvous_with_aggregator(b"kez", response, workers).secret,
        rendezvous_with_aggregator(b"key", other, workers).secret,
    }
    assert len(secrets) == 3
    assert rendezvous_with_aggregator(b"key", response, workers).descriptors[-1].aggregates


def test_a_response_that_neither_gives_nor_refuses_is_none() -> None:
    with pytest.raises(LinkError, match="record: there is none"):
        AggregationResponse.read(AggregationResponse(nonces=NONCES, most_bytes=9).write())

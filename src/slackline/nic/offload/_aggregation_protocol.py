"""The protocol between rank 0 of a group and an aggregator, before the group's links are made.

An aggregator is a node that adds for all ranks of a group, which are its workers.

    rank 0                                     aggregator
      AggregationRequest   nonce, number of workers    ->
              <-  AggregationRequest   nonce
      descriptors of the ranks, one each               ->
              <-  AggregationResponse  the aggregator's descriptor and size limit, or a refusal

Every frame except the two requests ends with a proof: HMAC-SHA256 under the shared key, over both
nonces, the frame's number and its bytes. The secret of the links is derived from the same key and
nonces, so a worker must have the key. Without a configured key, any host that can reach the
aggregator may use it; the aggregator then connects to no address that a descriptor names unless the
worker has connected from that address. This module uses no socket.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import asdict, dataclass
from typing import Any

from slackline.errors import LinkError, SlacklineError
from slackline.nic.connect import (
    MAC_BYTES,
    MAX_PAYLOAD,
    EndpointDescriptor,
    Rendezvous,
    to_descriptor,
)

__all__ = [
    "MOST_WORKERS",
    "AggregationRequest",
    "AggregationResponse",
    "Proof",
    "read_descriptor",
    "rendezvous_with_aggregator",
    "write_descriptor",
]

PROTOCOL = 3
MOST_WORKERS = 255
_NONCE_LETTERS = 64


@dataclass(frozen=True, kw_only=True)
class AggregationRequest:
    """The first message from rank 0 to an aggregator, and from the aggregator to rank 0.

    The message has a nonce and the number of workers.
    """

    nonce: str
    workers: int
    protocol: int = PROTOCOL

    def write(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, payload: bytes) -> AggregationRequest:
        """Return the request in `payload`; raise LinkError if the request is invalid."""
        told = _object(payload)
        nonce, workers, protocol = (told.get(k) for k in ("nonce", "workers", "protocol"))
        if protocol != PROTOCOL:
            raise LinkError(f"the other end speaks aggregator protocol {protocol}, not {PROTOCOL}")
        if not isinstance(nonce, str) or len(nonce) != _NONCE_LETTERS:
            raise LinkError("a request to an aggregator has a wrong nonce")
        if type(workers) is not int or not 0 <= workers <= MOST_WORKERS:
            raise LinkError(f"a request to an aggregator has a wrong number of workers: {workers}")
        return cls(nonce=nonce, workers=workers)


@dataclass(frozen=True, kw_only=True)
class AggregationResponse:
    """The aggregator's response, which rank 0 passes on to the other ranks."""

    refusal: str = ""
    """The reason of a refusal, with all other fields empty; empty in an acceptance."""
    nonces: tuple[str, str] = ("", "")
    """The nonces of rank 0 and of the aggregator."""
    most_bytes: int = 0
    """The longest operation, in bytes, that the aggregator takes."""
    adds_trees: bool = False
    """Whether the aggregator adds one node of each rank in the order of a tree."""
    descriptor: EndpointDescriptor | None = None

    def write(self) -> bytes:
        told = None if self.descriptor is None else self.descriptor.told()
        fields = {name: value for name, value in vars(self).items() if name != "descriptor"}
        return json.dumps({**fields, "record": told}, separators=(",", ":")).encode()

    @classmethod
    def read(cls, payload: bytes) -> AggregationResponse:
        """Return the response in `payload`; raise LinkError if the response is invalid."""
        told = _object(payload)
        try:
            descriptor = None if told["record"] is None else to_descriptor(told["record"])
            first, second = told["nonces"]
            if descriptor is None and not told["refusal"]:
                raise ValueError("record: there is none")
            return cls(
                refusal=str(told["refusal"]),
                nonces=(str(first), str(second)),
                most_bytes=int(told["most_bytes"]),
                adds_trees=bool(told["adds_trees"]),
                descriptor=descriptor,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise LinkError(f"an aggregator's response has a wrong {error}") from error


class Proof:
    """The HMAC authentication of the frames between rank 0 of a group and an aggregator."""

    def __init__(self, key: bytes, ours: str, theirs: str, *, calls: bool) -> None:
        nonces = ours + theirs if calls else theirs + ours
        self._key = hmac.new(key, b"aggregator" + nonces.encode(), hashlib.sha256).digest()
        self._sent, self._heard = (b"caller", b"listener") if calls else (b"listener", b"caller")
        self._numbers = {self._sent: 0, self._heard: 0}

    def seal(self, payload: bytes) -> bytes:
        """Return the payload followed by its HMAC; raise LinkError if a frame cannot hold both."""
        if len(payload) + MAC_BYTES > MAX_PAYLOAD:
            raise LinkError(f"a message of {len(payload)} bytes is too long for an aggregator")
        return payload + self._proof(self._sent, payload)

    def open(self, sealed: bytes) -> bytes:
        """Check and remove the HMAC of a payload; raise LinkError if the peer has another key."""
        payload, proof = sealed[:-MAC_BYTES], sealed[-MAC_BYTES:]
        if not hmac.compare_digest(proof, self._proof(self._heard, payload)):
            raise LinkError("the proof is wrong: the other end does not have the same key")
        return payload

    def _proof(self, role: bytes, payload: bytes) -> bytes:
        number = self._numbers[role]
        self._numbers[role] += 1
        text = role + number.to_bytes(4, "big") + payload
        return hmac.new(self._key, text, hashlib.sha256).digest()


def rendezvous_with_aggregator(
    key: bytes, response: AggregationResponse, workers: tuple[EndpointDescriptor, ...]
) -> Rendezvous:
    """Derive the rendezvous result of workers and aggregator: the secret and all descriptors.

    Each member derives the same result.
    """
    assert response.descriptor is not None
    text = "star " + " ".join(response.nonces)
    secret = hmac.new(key, text.encode(), hashlib.sha256).digest()
    return Rendezvous(secret=secret, descriptors=(*workers, response.descriptor))


def write_descriptor(descriptor: EndpointDescriptor) -> bytes:
    """Return an endpoint descriptor as JSON text."""
    return json.dumps(descriptor.told(), separators=(",", ":")).encode()


def read_descriptor(payload: bytes) -> EndpointDescriptor:
    """Return the endpoint descriptor in `payload`; raise LinkError if the descriptor is invalid."""
    try:
        return to_descriptor(_object(payload))
    except (KeyError, TypeError, ValueError, SlacklineError) as error:
        raise LinkError(f"a worker's descriptor has a wrong {error}") from error


def _object(payload: bytes) -> dict[str, Any]:
    try:
        told = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise LinkError("a message of an aggregator or worker is not JSON") from error
    if not isinstance(told, dict):
        raise LinkError("a message of an aggregator or worker is not a JSON object")
    return told

"""How two engines prove to each other that they know the job's secret, without saying it.

    caller                                                  listener
      Hello   who, whom, which rail, nonce, certificate  ->
              <-  Answer  nonce, certificate, proof of both messages
      Terms   what the rail needs, proof of all three     ->
              <-  Terms   what the rail needs, proof of all four

A proof is HMAC-SHA256 under a key of this pair, over every byte said so far and the role of the
speaker. Both nonces are in it, so an old conversation proves nothing; so is the role, so what one
end said cannot be said back to it. The frames' job code comes from the same bytes and differs
each time. What costs anything (sockets, descriptors) is given only to who has proven itself.

Here is no socket: a Talk yields what to send and is sent what came.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Generator
from dataclasses import dataclass

from slackline.errors import LinkError
from slackline.nic._messages import MAC_BYTES, Answer, Hello, Message, Terms, parse, text_of

__all__ = ["Said", "Session", "Talk", "call", "fresh_nonce", "listen"]


@dataclass(frozen=True, kw_only=True)
class Said:
    """One message: the payload of a HELLO frame, and over Unix sockets descriptors."""

    payload: bytes
    fds: tuple[int, ...] = ()
    last: bool = False
    """Whether no reply is expected."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """What both ends know when each has proven itself."""

    job: int
    """The code that every frame on the rail carries; never 0."""
    ours: Terms
    theirs: Terms
    fds: tuple[int, ...]
    """Descriptors that came with their terms."""
    certificate: bytes
    """Theirs, in DER; empty without TLS."""


Talk = Generator[Said, Said, Session]
OurTerms = Callable[[], tuple[Terms, tuple[int, ...]]]
"""Makes what the rail needs at this end; called once the peer has proven itself."""


def fresh_nonce() -> str:
    return secrets.token_hex(32)


def call(hello: Hello, key: bytes, terms: OurTerms) -> Talk:
    """The caller's side. Raises LinkError as soon as the other end is not who it should be."""
    transcript = _Transcript(key)
    reply = yield Said(payload=transcript.say(hello))
    answer = transcript.heard("listener", Answer, reply.payload)
    if answer.engine != hello.peer:
        raise LinkError("another engine answered than the one that was called")
    ours, fds = terms()
    reply = yield Said(payload=transcript.prove("caller", ours), fds=fds)
    theirs = transcript.heard("listener", Terms, reply.payload)
    return _session(transcript, ours, theirs, reply.fds, answer.certificate)


def listen(first: bytes, hello: Hello, answer: Answer, key: bytes, terms: OurTerms) -> Talk:
    """The listener's side, from the moment when the payload `first` was read as `hello`."""
    transcript = _Transcript(key)
    transcript.add(first)
    reply = yield Said(payload=transcript.prove("listener", answer))
    theirs = transcript.heard("caller", Terms, reply.payload)
    ours, fds = terms()
    last = transcript.prove("listener", ours)
    session = _session(transcript, ours, theirs, reply.fds, hello.certificate)
    yield Said(payload=last, fds=fds, last=True)
    return session


def _session(
    transcript: _Transcript, ours: Terms, theirs: Terms, fds: tuple[int, ...], certificate: str
) -> Session:
    return Session(
        job=transcript.code() or 1,
        ours=ours,
        theirs=theirs,
        fds=fds,
        certificate=bytes.fromhex(certificate),
    )


class _Transcript:
    """Every byte that was said, under the key of the pair."""

    def __init__(self, key: bytes) -> None:
        self._mac = hmac.new(key, b"slackline handshake 2", hashlib.sha256)

    def add(self, payload: bytes) -> None:
        self._mac.update(len(payload).to_bytes(4, "big") + payload)

    def say(self, message: Hello) -> bytes:
        text = text_of(message)
        self.add(text)
        return text

    def prove(self, role: str, message: Answer | Terms) -> bytes:
        """The payload of `message` with a proof behind it."""
        text = text_of(message)
        payload = text + self._proof(role, text)
        self.add(payload)
        return payload

    def heard(self, role: str, kind: type[Message], payload: bytes) -> Message:
        """The message in `payload`, if `role` has proven that it knows the key."""
        text, proof = payload[:-MAC_BYTES], payload[-MAC_BYTES:]
        if not hmac.compare_digest(proof, self._proof(role, text)):
            raise LinkError("the proof is wrong: the other end does not know the job's secret")
        self.add(payload)
        return parse(kind, text)

    def code(self) -> int:
        return int.from_bytes(self._with(b"job")[:4], "little")

    def _proof(self, role: str, text: bytes) -> bytes:
        return self._with(role.encode() + b"\0" + text)

    def _with(self, more: bytes) -> bytes:
        mac = self._mac.copy()
        mac.update(b"\xff\xff\xff\xff" + more)  # no message has this length
        return mac.digest()

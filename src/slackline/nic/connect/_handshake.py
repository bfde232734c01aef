"""The handshake of a rail: two engines prove that they know the job's secret without sending it.

    caller                                                  listener
      Hello   names, rail, nonce, certificate             ->
              <-  Answer  nonce, certificate, proof over both messages
      TransportParameters  proof over all three           ->
      (descriptors)                                       ->
              <-  TransportParameters  proof over all four
              <-  (descriptors)
      Mapped  proof over all five                         ->    over shared memory only

Over a network, the first message of each end that the other end's message has answered, Answer
and the caller's TransportParameters, also tries the path with long packets (_packet_ladder).

A proof is HMAC-SHA256 under a key of this pair, over every byte sent so far and the role of the
sender. A proof covers both nonces, so a replayed conversation fails. A proof also covers the role,
so that a message cannot be reflected to its sender. The number in the field `job` of the
rail's frames is derived from the same bytes and differs each time. Costly resources (sockets,
descriptors) are created only for an authenticated peer. File descriptors, between processes of one
host, follow the transport parameters and are received only after the proof in these was right.
Each end maps the memory that it has received and tells the other end if it cannot. Neither end uses
shared memory before both have mapped it.

The module uses no socket. A Handshake is a generator, a state machine: it yields messages to
send, and receives the replies by `send`.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Generator

from slackline._lazy import record
from slackline.errors import LinkError
from slackline.nic.connect._messages import (
    MAC_BYTES,
    Answer,
    Hello,
    Mapped,
    Message,
    TransportParameters,
    parse,
    text_of,
)

__all__ = [
    "Handshake",
    "HandshakeMessage",
    "MapMemory",
    "Session",
    "call",
    "fresh_nonce",
    "listen",
    "map_nothing",
]


@record(frozen=True, kw_only=True)
class HandshakeMessage:
    """A handshake message: the payload of a HELLO frame, and file descriptors that follow it."""

    payload: bytes = b""
    """The payload to send as a frame; empty if nothing is to be sent."""
    fds: tuple[int, ...] = ()
    """The descriptors to send after the frame; in a reply, those received."""
    awaits_fds: bool = False
    """Whether the reply has descriptors only: those that follow the frame received before."""
    last: bool = False
    """Whether no reply is expected."""


@record(frozen=True, kw_only=True)
class Session:
    """The result of a handshake, after both ends have authenticated themselves."""

    job: int
    """The number in the field `job` of every frame on the rail; never 0."""
    ours: TransportParameters
    theirs: TransportParameters
    fds: tuple[int, ...]
    """The file descriptors that followed the peer's transport parameters."""
    certificate: bytes
    """The peer's certificate in DER; empty without TLS."""
    unmapped: str
    """The reason why the two ends cannot share memory; empty if they can, or did not try."""


Handshake = Generator[HandshakeMessage, HandshakeMessage, Session]
MakeParameters = Callable[[], tuple[TransportParameters, tuple[int, ...]]]
"""A function that makes this end's transport parameters, called once the peer is authenticated."""
MapMemory = Callable[[TransportParameters, tuple[int, ...]], str]
"""A function map(theirs, fds) that maps the peer's arena. Returns the reason if this process cannot
map it, else an empty text; raises LinkError if the arena is not as the peer says."""


def fresh_nonce() -> str:
    """Return 32 random bytes in hexadecimal."""
    return secrets.token_hex(32)


def map_nothing(theirs: TransportParameters, fds: tuple[int, ...]) -> str:
    """Map no memory, as a MapMemory of an end that does not go on to use the rail."""
    return ""


def call(
    hello: Hello, key: bytes, parameters: MakeParameters, map_memory: MapMemory = map_nothing
) -> Handshake:
    """Run the dialling side of a handshake; raise LinkError if the other end is not the peer."""
    transcript = _Transcript(key)
    reply = yield HandshakeMessage(payload=transcript.say(hello))
    answer = transcript.heard("listener", Answer, reply.payload)
    if answer.engine != hello.peer:
        raise LinkError("another engine answered than the one that was called")
    ours, fds = parameters()
    reply = yield HandshakeMessage(payload=transcript.prove("caller", ours), fds=fds)
    theirs = transcript.heard("listener", TransportParameters, reply.payload)
    unmapped = ours.unmapped or theirs.unmapped
    if theirs.arena_bytes:
        reply = yield HandshakeMessage(awaits_fds=True)
        unmapped = map_memory(theirs, reply.fds)
        mapped = transcript.prove("caller", Mapped(unmapped=unmapped))
        yield HandshakeMessage(payload=mapped, last=True)
    return _session(transcript, ours, theirs, reply.fds, answer.certificate, unmapped)


def listen(
    first: bytes,
    hello: Hello,
    answer: Answer,
    key: bytes,
    parameters: MakeParameters,
    map_memory: MapMemory = map_nothing,
) -> Handshake:
    """Run the listening side of a handshake, after `first` was received and parsed as `hello`."""
    transcript = _Transcript(key)
    transcript.add(first)
    reply = yield HandshakeMessage(payload=transcript.prove("listener", answer))
    theirs = transcript.heard("caller", TransportParameters, reply.payload)
    unmapped, received = theirs.unmapped, reply.fds
    if theirs.arena_bytes:
        received = (yield HandshakeMessage(awaits_fds=True)).fds
        unmapped = map_memory(theirs, received)
    ours, fds = (TransportParameters(unmapped=unmapped), ()) if unmapped else parameters()
    message = HandshakeMessage(
        payload=transcript.prove("listener", ours), fds=fds, last=not ours.arena_bytes
    )
    unmapped = unmapped or ours.unmapped
    if ours.arena_bytes:
        reply = yield message
        unmapped = transcript.heard("caller", Mapped, reply.payload).unmapped
    session = _session(transcript, ours, theirs, received, hello.certificate, unmapped)
    if not ours.arena_bytes:
        yield message
    return session


def _session(
    transcript: _Transcript,
    ours: TransportParameters,
    theirs: TransportParameters,
    fds: tuple[int, ...],
    certificate: str,
    unmapped: str,
) -> Session:
    return Session(
        job=transcript.code() or 1,
        ours=ours,
        theirs=theirs,
        fds=fds,
        certificate=bytes.fromhex(certificate),
        unmapped=unmapped,
    )


class _Transcript:
    """The running HMAC over all messages of a handshake, under the key of the pair."""

    def __init__(self, key: bytes) -> None:
        self._mac = hmac.new(key, b"slackline handshake 4", hashlib.sha256)

    def add(self, payload: bytes) -> None:
        """Add a message's payload to the transcript."""
        self._mac.update(len(payload).to_bytes(4, "big") + payload)

    def say(self, message: Hello) -> bytes:
        """Add a message that carries no proof to the transcript; return the message's text."""
        text = text_of(message)
        self.add(text)
        return text

    def prove(self, role: str, message: Answer | TransportParameters | Mapped) -> bytes:
        """Return the payload of `message` followed by its proof, and add both to the transcript."""
        text = text_of(message)
        payload = text + self._proof(role, text)
        self.add(payload)
        return payload

    def heard(self, role: str, kind: type[Message], payload: bytes) -> Message:
        """Return the message in `payload`; raise LinkError if the MAC of its sender is wrong."""
        text, proof = payload[:-MAC_BYTES], payload[-MAC_BYTES:]
        if not hmac.compare_digest(proof, self._proof(role, text)):
            raise LinkError("the proof is wrong: the other end does not know the job's secret")
        self.add(payload)
        return parse(kind, text)

    def code(self) -> int:
        """Return the number for the field `job` of frames, derived from the handshake's bytes."""
        return int.from_bytes(self._with(b"job")[:4], "little")

    def _proof(self, role: str, text: bytes) -> bytes:
        return self._with(role.encode() + b"\0" + text)

    def _with(self, more: bytes) -> bytes:
        mac = self._mac.copy()
        mac.update(b"\xff\xff\xff\xff" + more)  # No message has this length.
        return mac.digest()

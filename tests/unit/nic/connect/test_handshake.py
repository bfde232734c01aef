"""Tests of the handshake's proofs of identity, without sockets."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slackline.errors import LinkError, SlacklineError
from slackline.nic.connect._handshake import (
    Handshake,
    HandshakeMessage,
    Session,
    call,
    fresh_nonce,
    listen,
)
from slackline.nic.connect._messages import (
    Answer,
    Hello,
    Mapped,
    TransportParameters,
    frame,
    parse,
    text_of,
    unframe,
)
from slackline.wire import HEADER_BYTES, FrameKind, Header, encode

KEY = bytes(range(32))
WRONG_PROOF = "^the proof is wrong: the other end does not know the job's secret$"


def hello(**changes: Any) -> Hello:
    values: dict[str, Any] = {"engine": "a", "peer": "b", "rail": 3, "kind": "tcp"}
    return Hello(**(values | {"nonce": fresh_nonce()} | changes))


def parameters(port: int) -> tuple[TransportParameters, tuple[int, ...]]:
    return TransportParameters(port=port), ()


def caller(key: bytes = KEY, **changes: Any) -> Handshake:
    return call(hello(**changes), key, lambda: parameters(1))


def listener(first: bytes, key: bytes = KEY, engine: str = "b") -> Handshake:
    answer = Answer(engine=engine, nonce=fresh_nonce())
    return listen(first, parse(Hello, first), answer, key, lambda: parameters(2))


def finish(handshake: Handshake, said: HandshakeMessage | None) -> Session:
    """Return the session at the end of a handshake that expects at most the message `said`."""
    with pytest.raises(StopIteration) as end:
        handshake.send(said) if said else next(handshake)
    session: Session = end.value.value
    return session


def conversation(a: Handshake) -> tuple[list[HandshakeMessage], Session, Session]:
    """Return all messages of a handshake of two honest ends, and the session of each end."""
    said = [next(a)]
    b = listener(said[0].payload)
    said.append(next(b))
    said.append(a.send(said[1]))
    said.append(b.send(said[2]))
    return said, finish(a, said[3]), finish(b, None)


def test_two_ends_with_the_same_key_agree() -> None:
    said, a, b = conversation(caller())
    assert [each.last for each in said] == [False, False, False, True]
    assert a.job == b.job != 0
    assert (
        (a.ours, a.theirs)
        == (b.theirs, b.ours)
        == (TransportParameters(port=1), TransportParameters(port=2))
    )


MEMORY = TransportParameters(arena_bytes=1 << 20, ring=64)


def over_memory(
    calls: TransportParameters, maps: tuple[str, str], listens: TransportParameters
) -> tuple[list[HandshakeMessage], Session, Session]:
    """Return the messages of a handshake over shared memory, and the session of each end.

    `maps` are the caller's and the listener's reasons not to map the other's memory, or "".
    """
    fds = [(1, 2) if each.arena_bytes else () for each in (calls, listens)]
    a = call(hello(kind="shm"), KEY, lambda: (calls, fds[0]), lambda *_: maps[0])
    said = [next(a)]
    answer = Answer(engine="b", nonce=fresh_nonce())
    heard = parse(Hello, said[0].payload)
    b = listen(said[0].payload, heard, answer, KEY, lambda: (listens, fds[1]), lambda *_: maps[1])
    said += [next(b)]
    said += [a.send(said[1])]
    reply = b.send(HandshakeMessage(payload=said[2].payload))
    if said[2].fds:
        assert reply == HandshakeMessage(awaits_fds=True)
        reply = b.send(HandshakeMessage(fds=(5, 6)))
    said += [reply]
    if not reply.fds:
        return said, finish(a, HandshakeMessage(payload=reply.payload)), finish(b, None)
    assert a.send(HandshakeMessage(payload=reply.payload)) == HandshakeMessage(awaits_fds=True)
    said += [a.send(HandshakeMessage(fds=(7, 8)))]
    return said, finish(a, None), finish(b, HandshakeMessage(payload=said[4].payload))


def test_descriptors_are_asked_for_only_after_the_proof() -> None:
    """Check both ends of shared memory: each asks for the other's descriptors once, at the end."""
    said, a, b = over_memory(MEMORY, ("", ""), MEMORY)
    assert [each.last for each in said] == [False] * 4 + [True]
    assert [each.fds for each in said] == [(), (), (1, 2), (1, 2), ()]
    assert (a.fds, b.fds) == ((7, 8), (5, 6))
    assert (a.unmapped, b.unmapped) == ("", "")
    assert a.job == b.job


@pytest.mark.parametrize(
    ("calls", "maps", "listens", "messages"),
    [
        (MEMORY, ("no", ""), MEMORY, 5),
        (MEMORY, ("", "no"), MEMORY, 4),
        (TransportParameters(unmapped="no"), ("", ""), MEMORY, 4),
        (MEMORY, ("", ""), TransportParameters(unmapped="no"), 4),
    ],
    ids=["caller cannot map", "listener cannot map", "caller has none", "listener has none"],
)
def test_both_ends_know_why_they_cannot_share_memory(
    calls: TransportParameters,
    maps: tuple[str, str],
    listens: TransportParameters,
    messages: int,
) -> None:
    said, a, b = over_memory(calls, maps, listens)
    assert (len(said), a.unmapped, b.unmapped) == (messages, "no", "no")


def test_a_forged_word_that_the_memory_is_mapped_is_refused() -> None:
    a = call(hello(kind="shm"), KEY, lambda: (MEMORY, (1, 2)))
    first = next(a)
    answer = Answer(engine="b", nonce=fresh_nonce())
    b = listen(first.payload, parse(Hello, first.payload), answer, KEY, lambda: (MEMORY, (3, 4)))
    b.send(HandshakeMessage(payload=a.send(next(b)).payload))
    b.send(HandshakeMessage(fds=(5, 6)))
    with pytest.raises(LinkError, match=WRONG_PROOF):
        b.send(HandshakeMessage(payload=text_of(Mapped()) + bytes(32)))


def test_the_secret_is_never_said() -> None:
    said, _, _ = conversation(caller())
    everything = b"".join(each.payload for each in said)
    assert KEY not in everything
    assert KEY.hex().encode() not in everything


def test_the_same_two_ends_get_another_job_code_each_time() -> None:
    assert conversation(caller())[1].job != conversation(caller())[1].job


def test_a_caller_without_the_key_is_refused() -> None:
    a = caller(key=bytes(32))
    b = listener(next(a).payload)
    answer = next(b)
    with pytest.raises(LinkError, match=WRONG_PROOF):
        a.send(answer)
    forged = text_of(TransportParameters(port=9)) + bytes(32)
    with pytest.raises(LinkError, match=WRONG_PROOF):
        b.send(HandshakeMessage(payload=forged))


def test_a_listener_without_the_key_is_refused_and_told_nothing() -> None:
    made = []

    def our_terms() -> tuple[TransportParameters, tuple[int, ...]]:
        made.append(1)
        return parameters(1)

    a = call(hello(), KEY, our_terms)
    b = listener(next(a).payload, key=bytes(32))
    with pytest.raises(LinkError, match=WRONG_PROOF):
        a.send(next(b))
    assert made == [], "nothing is made for an unauthenticated peer"


def test_a_conversation_that_is_replayed_to_a_listener_is_refused() -> None:
    said, _, _ = conversation(caller())
    again = listener(said[0].payload)
    next(again)
    with pytest.raises(LinkError, match=WRONG_PROOF):
        again.send(said[2])


def test_a_conversation_that_is_replayed_to_a_caller_is_refused() -> None:
    said, _, _ = conversation(caller())
    again = caller()
    next(again)
    with pytest.raises(LinkError, match=WRONG_PROOF):
        again.send(said[1])


def test_what_a_caller_says_cannot_be_said_back_to_it() -> None:
    a = caller()
    first = next(a)
    with pytest.raises(LinkError, match=WRONG_PROOF):
        a.send(first)
    other = caller()
    next(other)
    b = listener(first.payload)
    answer = next(b)
    with pytest.raises(LinkError, match=WRONG_PROOF):
        b.send(answer)
    with pytest.raises(LinkError, match=WRONG_PROOF):
        other.send(answer)


def test_another_engine_of_the_job_cannot_take_the_place_of_the_one_called() -> None:
    a = caller()
    b = listener(next(a).payload, engine="c")
    with pytest.raises(LinkError, match=r"^another engine answered than the one that was called$"):
        a.send(next(b))


@given(message=st.integers(0, 3), at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_whatever_byte_is_changed_on_the_way_the_conversation_fails(
    message: int, at: int, flip: int
) -> None:
    def changed(said: HandshakeMessage, number: int) -> HandshakeMessage:
        if number != message:
            return said
        payload = bytearray(said.payload)
        payload[at % len(payload)] ^= flip
        return HandshakeMessage(payload=bytes(payload))

    def run() -> None:
        a = caller()
        b = listener(changed(next(a), 0).payload)
        third = a.send(changed(next(b), 1))
        fourth = b.send(changed(third, 2))
        a.send(changed(fourth, 3))

    with pytest.raises(SlacklineError):
        run()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.parametrize("kind", [Hello, Answer, TransportParameters])
@given(text=st.binary(max_size=200))
@example(text=b"[" * 4000)
@example(text=b"1" * 4000)
@example(text=b'{"engine": NaN}')
def test_bytes_of_unauthenticated_peers_are_a_message_or_a_link_error(
    kind: Any, text: bytes
) -> None:
    with contextlib.suppress(LinkError):
        parse(kind, text)


@pytest.mark.parametrize("kind", [Hello, Answer, TransportParameters])
@given(data=st.data())
@settings(max_examples=settings.default.max_examples * 3 // 10)
def test_fields_of_the_wrong_kind_are_a_link_error(kind: Any, data: st.DataObject) -> None:
    good = {
        Hello: vars(hello()),
        Answer: vars(Answer(engine="b", nonce="0" * 64)),
        TransportParameters: vars(TransportParameters()),
    }[kind]
    changes = data.draw(st.dictionaries(st.sampled_from(sorted(good)), JSON))
    try:
        message = parse(kind, json.dumps(dict(good) | changes).encode())
    except LinkError:
        return
    assert parse(kind, text_of(message)) == message


def test_a_message_survives_its_frame() -> None:
    payload = text_of(hello())
    whole = frame(payload, 77)
    header = unframe(whole[:HEADER_BYTES])
    assert (header.job, header.length) == (77, len(payload))
    assert whole[HEADER_BYTES:] == payload


def test_a_frame_that_is_no_hello_is_refused() -> None:
    with pytest.raises(LinkError, match=r"^the frame must be a HELLO, not ACK$"):
        unframe(encode(Header(kind=FrameKind.ACK)))


@given(head=st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_any_64_bytes_are_a_hello_or_an_error_of_ours(head: bytes) -> None:
    with pytest.raises(SlacklineError):
        unframe(head)

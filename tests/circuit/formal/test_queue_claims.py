"""Tests that claims about a ring NIC's queues are proved, and refuted of broken queues."""

import shutil

import pytest

pytest.importorskip("amaranth", reason="amaranth is missing: slackline-torch[circuit]")

from formal_claims import Claim, named
from formal_proving import Verdict
from queue_circuits import Queue, Shared

from slackline.circuit import RingOptions

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        shutil.which("yosys") is None, reason="Yosys is not installed (Debian: apt install yosys)"
    ),
]

NARROW = RingOptions(lanes=1, slots=2, payload_bytes=128, operations=2)

PROVED = {
    "the descriptor queue is never overrun, nor the room for what is fetched": Claim(
        home="slackline.circuit.ring.queue._descriptors",
        make=lambda home: Queue(home.DescriptorQueue(NARROW), (), ("requests", "descriptors")),
        steps=4,
        slow=True,
        right="(told > entries) | ",
        wrong="",
    ),
    "the completion queue is never overrun, whatever the host says it has taken": Claim(
        home="slackline.circuit.ring.queue._completions",
        make=lambda home: Queue(
            home.CompletionQueue(NARROW), ("done", "refusals", "failed"), ("requests", "o")
        ),
        steps=4,
        slow=True,
        right="room.eq(here < entries)",
        wrong="room.eq(here <= entries)",
    ),
    "requests of two users stay until they are taken": Claim(
        home="slackline.circuit.ring.queue._sharing",
        make=lambda home: Shared(home.SharedReads(1, 4), ("asked",), ("requests",)),
        steps=4,
        right="user.eq(Mux(waits, held, other.valid))",
        wrong="user.eq(other.valid)",
    ),
    "data of two users stay until they are taken": Claim(
        home="slackline.circuit.ring.queue._sharing",
        make=lambda home: Shared(home.SharedWrites(1, 2), ("asked", "beats"), ("requests", "o")),
        steps=8,
        memories="*",
        right="user = turns.user\n        m.d.comb += [\n            o.valid",
        wrong="user = other.valid\n        m.d.comb += [\n            o.valid",
    ),
}
"""Claims that are proved for every cycle."""


@pytest.mark.parametrize("name", named(PROVED))
def test_a_claim_is_proved(name: str) -> None:
    assert PROVED[name].settled() is Verdict.PROVED


@pytest.mark.parametrize("name", named(PROVED))
def test_a_broken_circuit_is_refuted(name: str) -> None:
    assert PROVED[name].settled_if_broken() is Verdict.REFUTED

"""Tests that claims about FIFOs, credit, slots and streams are proved, and refuted of mutants."""

import importlib
import shutil
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="amaranth is missing: slackline-torch[circuit]")

from formal_circuits import (
    Datapath,
    Gate,
    Guard,
    Levels,
    Node,
    Order,
    Outlet,
    Registers,
    anything,
    gateware,
    small_sum_buffer,
)
from formal_claims import Claim, named
from formal_proving import Verdict

from slackline.circuit import NodeOptions
from slackline.circuit.proof import assume, claim

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        shutil.which("yosys") is None, reason="Yosys is not installed (Debian: apt install yosys)"
    ),
]

SUM_BUFFER, SENDER = (
    importlib.import_module(f"slackline.circuit.node.{name}") for name in ("_sum_buffer", "_sender")
)
NARROW = NodeOptions(ports=2, lanes=1, slots=2, payload_bytes=64)
WIDE = NodeOptions(ports=2, lanes=16, slots=2, payload_bytes=128)
WIDE_THREE = NodeOptions(ports=3, lanes=16, slots=2, payload_bytes=128)
THREE = NodeOptions(ports=3, lanes=1, slots=4, payload_bytes=64)


def datapath(reducer: Any, options: NodeOptions) -> Any:
    issuer = gateware(importlib.import_module("slackline.circuit.node._issuer"))
    return Datapath(issuer.Issuer(options), reducer.Reducer(options))


def parts(node: Any, options: NodeOptions, needs: Callable[..., None]) -> Any:
    """Return a node with real parts, except the buffer of sums and the parts that compute numbers.

    `needs` is called in place of `assume` in the ports, with the conditions that a port needs.
    """
    for name in ("receiver", "matcher", "issuer", "reducer"):
        home = gateware(importlib.import_module(f"slackline.circuit.node._{name}"))
        if name == "receiver":
            home.assume = needs
        setattr(node, name.capitalize(), getattr(home, name.capitalize()))
    node.SumBuffer = anything(node.SumBuffer)
    return Node(node.AggregationNode(options))


def order_of_frames(m: Any, platform: object, *needed: Any) -> None:
    """Add a port's needs: claim the order of begin and release, and assume the ends of messages.

    Frames begin after they are matched, and are released after they begin. The conditions about
    ends of messages depend on the data in queues, so they are only assumed.
    """
    claim(m, platform, *needed[:2])
    assume(m, platform, *needed[2:])


QUEUE_FULL = ("self.w_rdy.eq(self.level != self.depth)", "self.w_rdy.eq(1)")
BUFFERED_FULL = ("self.w_rdy.eq(inner_level != inner_depth)", "self.w_rdy.eq(1)")
PROVED = {
    "a FIFO holds what its level says, and never more than its depth": Claim(
        home="amaranth.lib.fifo",
        make=lambda home: Levels(home.SyncFIFO(width=4, depth=5)),
        steps=8,
        right=QUEUE_FULL[0],
        wrong=QUEUE_FULL[1],
    ),
    "a buffered FIFO holds what its level says, and never more than its depth": Claim(
        home="amaranth.lib.fifo",
        make=lambda home: Levels(home.SyncFIFOBuffered(width=4, depth=5)),
        steps=8,
        slow=True,
        right=BUFFERED_FULL[0],
        wrong=BUFFERED_FULL[1],
    ),
    "lanes take a pair only with room for its sum": Claim(
        home="slackline.circuit.datapath._lanes",
        make=lambda home: home.Lanes(1),
        steps=4,
        right="room - issue + done",
        wrong="room - issue + self.o.ready",
    ),
    "the datapath begins a beat only with room for it behind the adders": Claim(
        home="slackline.circuit.node._reducer",
        make=lambda home: datapath(home, THREE),
        steps=4,
        slow=True,
        right="(self.o.valid & self.o.ready))\n        m.d.comb += self.room",
        wrong="self.o.ready)\n        m.d.comb += self.room",
    ),
    "a port takes a frame only into a slot that is free": Claim(
        home="slackline.circuit.node._receiver",
        make=lambda home: home.Receiver(WIDE, 0),
        steps=9,
        right="(used + reader.closing < options.slots)",
        wrong="(used < options.slots)",
    ),
    "a port's slots are right with headers of many beats": Claim(
        home="slackline.circuit.node._receiver",
        make=lambda home: home.Receiver(NARROW, 0),
        steps=4,
        slow=True,
        right="self.finals + (self.events.accepted & final)",
        wrong="self.finals + final",
    ),
    "what leaves a node is never withdrawn or changed, whatever resets the node": Claim(
        home="slackline.circuit.frame._guard",
        make=lambda home: Guard(home.FrameOutlet(1)),
        steps=6,
        right="i.ready.eq(free & ~ending & ~self.cut)",
        wrong="i.ready.eq(free & ~ending)",
    ),
    "a node takes no rest of a frame for a frame, whatever resets the node": Claim(
        home="slackline.circuit.frame._guard",
        make=lambda home: Gate(home.FrameInlet(1)),
        steps=6,
        right="o.valid.eq(i.valid & ~drops & ~self.cut)",
        wrong="o.valid.eq(i.valid & ~self.cut)",
    ),
    "a port gets each sum as it was made, and again as it was made": Claim(
        home="slackline.circuit.node._sender",
        make=lambda home: Outlet(small_sum_buffer(gateware(SUM_BUFFER), home)),
        steps=18,
        memories="*",
        right="& (self.ended.number == wanted.number)",
        wrong="",
    ),
    "a sum is not sent again while its slot is written": Claim(
        home="slackline.circuit.node._sender",
        make=lambda home: Outlet(small_sum_buffer(gateware(SUM_BUFFER), home)),
        steps=18,
        memories="*",
        slow=True,
        right="(self.moved | self.beat.any())",
        wrong="self.beat.any()",
    ),
    "a sum is not overwritten before every port has it": Claim(
        home="slackline.circuit.node._sum_buffer",
        make=lambda home: Outlet(small_sum_buffer(home, gateware(SENDER))),
        steps=18,
        memories="*",
        slow=True,
        right="~full.any() & ~busy.any()",
        wrong="~full.all() & ~busy.any()",
    ),
    "AXI4-Lite answers each request once, and an answer stays": Claim(
        home="slackline.circuit.bus._axi_lite",
        make=lambda home: Registers(home.FromAxiLite()),
        steps=8,
        right="addressed & filled & (~i.bvalid | i.bready)",
        wrong="addressed & filled",
    ),
}
"""Claims that are proved for every cycle."""

BOUNDED = {
    "a FIFO gives what it took, in order": Claim(
        home="amaranth.lib.fifo",
        make=lambda home: Order(home.SyncFIFO(width=3, depth=4)),
        steps=18,
        bounded=True,
        memories="*",
        right="consume.eq(_incr(consume, self.depth))",
        wrong="consume.eq(_incr(consume, self.depth - 1))",
    ),
    "a buffered FIFO gives what it took, in order": Claim(
        home="amaranth.lib.fifo",
        make=lambda home: Order(home.SyncFIFOBuffered(width=3, depth=4)),
        steps=18,
        bounded=True,
        memories="*",
        slow=True,
        right="do_inner_read  = inner_r_rdy & (~self.r_rdy | self.r_en)",
        wrong="do_inner_read  = inner_r_rdy",
    ),
    "a node's parts keep the order of frames, and headers are there when they are due": Claim(
        home="slackline.circuit.node._aggregation",
        make=lambda home: parts(home, WIDE_THREE, order_of_frames),
        steps=12,
        bounded=True,
        slow=True,
        right="writer.begin.eq(issuer.begun)",
        wrong="writer.begin.eq(issuer.reduced)",
    ),
    "a node's ports know how many messages end in their buffers": Claim(
        home="slackline.circuit.node._aggregation",
        make=lambda home: parts(home, WIDE, claim),
        steps=12,
        bounded=True,
        memories="*heads*",
        slow=True,
        right="issuer.begun & matcher.finals[port]",
        wrong="issuer.begun & issuer.begun_frame.final",
    ),
}
"""Claims whose induction would need to know what memories hold. The claims are proved for all runs
of a number of cycles, in which a FIFO of 4 places goes round four times and a port gets four
frames; the order of frames in a node for 12 cycles."""


@pytest.mark.parametrize("name", named(PROVED))
def test_a_claim_is_proved(name: str) -> None:
    assert PROVED[name].settled() is Verdict.PROVED


@pytest.mark.parametrize("name", named(BOUNDED))
def test_a_claim_holds_in_every_run_of_a_length(name: str) -> None:
    assert BOUNDED[name].settled() is Verdict.BOUNDED


EVERY = {**PROVED, **BOUNDED}
REFUTED = [name for name, each in EVERY.items() if not each.slow][::2]
"""Broken circuits that `make test` refutes; the others are left to `make test-full`."""


@pytest.mark.parametrize("name", named(EVERY, REFUTED))
def test_a_broken_circuit_is_refuted(name: str) -> None:
    assert EVERY[name].settled_if_broken() is Verdict.REFUTED

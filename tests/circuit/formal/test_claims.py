"""Claims on FIFOs, credit, slots and streams are proved, and refuted of broken circuits."""

import importlib
import shutil
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="circuits need amaranth: install slackline[circuit]")

from formal_circuits import Datapath, Levels, Order, Outlet, Registers, gateware
from formal_claims import Claim
from formal_proving import Verdict

from slackline.circuit import NodeOptions

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        shutil.which("yosys") is None, reason="Yosys is not installed (Debian: apt install yosys)"
    ),
]

NARROW = NodeOptions(ports=2, lanes=1, slots=2, payload_bytes=64)
WIDE = NodeOptions(ports=2, lanes=16, slots=2, payload_bytes=128)
THREE = NodeOptions(ports=3, lanes=1, slots=4, payload_bytes=64)


def datapath(reducer: Any, options: NodeOptions) -> Any:
    issuer = gateware(importlib.import_module("slackline.circuit._issuer"))
    return Datapath(issuer.Issuer(options), reducer.Reducer(options))


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
        right=BUFFERED_FULL[0],
        wrong=BUFFERED_FULL[1],
    ),
    "lanes take a pair only with room for its sum": Claim(
        home="slackline.circuit._lanes",
        make=lambda home: home.Lanes(1),
        steps=4,
        right="room - issue + done",
        wrong="room - issue + self.o.ready",
    ),
    "the datapath begins a beat only with room for it behind the adders": Claim(
        home="slackline.circuit._reducer",
        make=lambda home: datapath(home, THREE),
        steps=4,
        right="(self.o.valid & self.o.ready))\n        m.d.comb += self.room",
        wrong="self.o.ready)\n        m.d.comb += self.room",
    ),
    "a port takes a frame only into a slot that is free": Claim(
        home="slackline.circuit._receiver",
        make=lambda home: home.Receiver(WIDE, 0),
        steps=9,
        right="(used + reader.closing < options.slots)",
        wrong="(used < options.slots)",
    ),
    "a port's slots are right with headers of many beats": Claim(
        home="slackline.circuit._receiver",
        make=lambda home: home.Receiver(NARROW, 0),
        steps=4,
        right="self.finals + (self.events.accepted & final)",
        wrong="self.finals + final",
    ),
    "what leaves a node is never withdrawn or changed": Claim(
        home="slackline.circuit._retainer",
        make=lambda home: Outlet(home.Retainer(NARROW, ahead=2)),
        steps=8,
        memories=True,
        right="(~self.i.valid & (beat == 0))",
        wrong="(beat == 0)",
    ),
    "AXI4-Lite answers each request once, and an answer stays": Claim(
        home="slackline.circuit._axi_lite",
        make=lambda home: Registers(home.FromAxiLite()),
        steps=8,
        right="addressed & filled & (~i.bvalid | i.bready)",
        wrong="addressed & filled",
    ),
}
"""Claims that hold in every cycle."""

BOUNDED = {
    "a FIFO gives what it took, in order": Claim(
        home="amaranth.lib.fifo",
        make=lambda home: Order(home.SyncFIFO(width=3, depth=4)),
        steps=18,
        bounded=True,
        memories=True,
        right="consume.eq(_incr(consume, self.depth))",
        wrong="consume.eq(_incr(consume, self.depth - 1))",
    ),
    "a buffered FIFO gives what it took, in order": Claim(
        home="amaranth.lib.fifo",
        make=lambda home: Order(home.SyncFIFOBuffered(width=3, depth=4)),
        steps=18,
        bounded=True,
        memories=True,
        right="do_inner_read  = inner_r_rdy & (~self.r_rdy | self.r_en)",
        wrong="do_inner_read  = inner_r_rdy",
    ),
}
"""Claims whose induction would need to know what memories hold: in all runs of so many cycles, in
which a FIFO of 4 places goes round four times."""


@pytest.mark.parametrize("name", PROVED)
def test_a_claim_is_proved(name: str) -> None:
    assert PROVED[name].settled() is Verdict.PROVED


@pytest.mark.parametrize("name", BOUNDED)
def test_a_claim_holds_in_every_run_of_a_length(name: str) -> None:
    assert BOUNDED[name].settled() is Verdict.BOUNDED


@pytest.mark.parametrize("name", [*PROVED, *BOUNDED])
def test_a_broken_circuit_is_refuted(name: str) -> None:
    claim = {**PROVED, **BOUNDED}[name]
    assert claim.settled_if_broken() is Verdict.REFUTED

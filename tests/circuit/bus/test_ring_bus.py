"""Tests that a ring NIC behind AXI obeys its buses' rules, with queues in simulated memory."""

import importlib
import re
from pathlib import Path

import pytest
from bus_running import checked, missing
from mutating import broken

from slackline.circuit import RingOptions

HERE = Path(__file__).parent
OPTIONS = RingOptions(lanes=1, slots=2, payload_bytes=128, operations=4)
RING = {"top": "slackline_ring", "checks": "ring_bus_checks"}
REASON = missing()
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]


def verilog() -> str:
    from slackline.circuit import AxiBlock, QueuedRingNic, convert

    headless = ("read_data", "write_data")
    text = str(convert("slackline_ring", AxiBlock(QueuedRingNic(OPTIONS), headless)).text)
    # Icarus evaluates an `always @*` block only after one of its inputs has changed, so each
    # block gets an input that changes at the start.
    woken = text.replace("always @* begin", "always @* begin if (wakes) begin end")
    woken = re.sub(r"always @\*\n( +\S+ = \d+'h\w+;)", r"initial\1", woken)
    return re.sub(r"(?ms)^(module .*?\);\n)", r"\1  reg wakes = 0; initial #1 wakes = 1;\n", woken)


QUICK = (
    "the_last_rank_sums_what_its_queue_says_whatever_pauses",
    "what_cannot_be_is_refused_with_its_code_and_nothing_else_happens",
)
"""The checks of every run of the tests."""


def test_a_ring_nic_behind_axi_sums_and_refuses(tmp_path: Path) -> None:
    assert checked(verilog(), tmp_path, only=QUICK, **RING) == dict.fromkeys(QUICK, "")


@pytest.mark.slow
def test_a_ring_nic_behind_axi_passes_every_check(tmp_path: Path) -> None:
    found = checked(verilog(), tmp_path, **RING)
    assert [said for said in found.values() if said] == []
    assert len(found) == (HERE / "ring_bus_checks.py").read_text().count("@cocotb.test()")


BROKEN = {
    "a request is changed while it waits": (
        "ring.queue._sharing",
        "user.eq(Mux(waits, held, other.valid))",
        "user.eq(other.valid)",
        "the_last_rank_sums_what_its_queue_says_whatever_pauses",
    ),
}
"""Mutants: a file, right code in it, wrong code instead, and the check that must fail."""


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_ring_nic_fails_a_check(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, right, wrong, check = BROKEN[name]
    changed = broken(module, right, wrong)
    user = importlib.import_module("slackline.circuit.ring.queue._queues")
    for each in changed.__all__:
        monkeypatch.setattr(user, each, getattr(changed, each))
    found = checked(verilog(), tmp_path, only=[check], **RING)
    assert "changed" in found[check] or "withdrawn" in found[check]

"""Tests that a node behind AXI obeys the rules of its buses, with models of cocotbext-axi
around."""

import importlib
from pathlib import Path

import pytest
from bus_running import checked, missing
from mutating import broken

from slackline.circuit import NodeOptions

HERE = Path(__file__).parent
OPTIONS = NodeOptions(ports=2, lanes=1, slots=4, payload_bytes=64)


NODE = {"top": "slackline_node", "checks": "bus_checks"}
REASON = missing()
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]


def verilog() -> str:
    from slackline.circuit import AggregationNode, AxiBlock, convert

    return str(convert("slackline_node", AxiBlock(AggregationNode(OPTIONS))).text)


QUICK = (
    "registers_read_what_was_written",
    "sums_at_full_pace_are_those_of_the_twin",
    "control_written_within_a_packet_ends_it_as_damaged_and_the_next_is_whole",
)
"""The checks of every run of the tests, beside that of a mutant."""


def test_a_node_behind_axi_sums_and_ends_its_packets(tmp_path: Path) -> None:
    assert checked(verilog(), tmp_path, only=QUICK, **NODE) == dict.fromkeys(QUICK, "")


@pytest.mark.slow
def test_a_node_behind_axi_passes_every_check_of_its_buses(tmp_path: Path) -> None:
    found = checked(verilog(), tmp_path, **NODE)
    assert [said for said in found.values() if said] == []
    assert len(found) == (HERE / "bus_checks.py").read_text().count("@cocotb.test()")


BROKEN = {
    "a response is withdrawn": (
        "bus._axi_lite",
        "with m.If(i.bready):",
        "with m.If(1):",
        "registers_read_what_was_written",
    ),
    "bytes beyond the end are kept": (
        "bus._axi_stream",
        "(over == 0) | (over > k)",
        "(over == 0) | (over >= k)",
        "sums_at_full_pace_are_those_of_the_twin",
    ),
    "a gap is taken for whole": (
        "bus._axi_stream",
        "return gaps | (",
        "return (",
        "damaged_packets_are_counted_and_what_follows_is_summed",
    ),
}
"""Mutants: a file, right code in it, wrong code instead, and the check that must fail."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if "gap" not in name else []) for name in BROKEN],
)
def test_a_broken_boundary_fails_a_check(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, right, wrong, check = BROKEN[name]
    changed = broken(module, right, wrong)
    user = importlib.import_module("slackline.circuit.bus._block")
    for each in changed.__all__:
        # The signature AXI_LITE is the same in the mutant, so only the logic behind it is replaced.
        if hasattr(user, each) and each != "AXI_LITE":
            monkeypatch.setattr(user, each, getattr(changed, each))
    assert checked(verilog(), tmp_path, only=[check], **NODE)[check] != ""

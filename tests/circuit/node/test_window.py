"""Tests of the rule that says how many slots a node needs for the delay of its wires."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from slackline.circuit import NodeOptions

# The limit leaves time to compile a circuit on a busy machine.
pytestmark = [pytest.mark.simulates, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "circuit-throughput-latency" / "closed_loop.py"
OPTIONS = NodeOptions(ports=3, lanes=1, slots=4, payload_bytes=64)
BEATS = OPTIONS.header_beats + OPTIONS.slot_beats


@pytest.fixture(scope="module")
def closed_loop() -> ModuleType:
    found = importlib.util.spec_from_file_location("closed_loop", SCRIPT)
    assert found is not None
    assert found.loader is not None
    made = importlib.util.module_from_spec(found)

    sys.modules["closed_loop"] = made
    found.loader.exec_module(made)
    return made


def test_with_the_slots_of_the_rule_a_beat_leaves_in_every_cycle(closed_loop: ModuleType) -> None:
    wire = (BEATS * (OPTIONS.slots - 2) - 12 * OPTIONS.ports) // 2
    found = closed_loop.rate(OPTIONS, wire)
    assert OPTIONS.slots - 0.1 < found.needed_slots <= OPTIONS.slots
    assert found.cycles_per_beat < 1.05


@pytest.mark.parametrize("wire", [64, 161])
def test_with_fewer_slots_the_round_trip_decides(closed_loop: ModuleType, wire: int) -> None:
    found = closed_loop.rate(OPTIONS, wire)
    assert found.needed_slots > OPTIONS.slots
    expected = (2 * wire + 2 * BEATS + 12 * OPTIONS.ports) / (OPTIONS.slots * BEATS)
    assert found.cycles_per_beat == pytest.approx(expected, rel=0.05)

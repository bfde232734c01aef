"""Tests that the checks of a ring NIC's queues find queues that are wrong in one place."""

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="amaranth is missing: slackline-torch[circuit]")

from mutating import Mutant, make
from queue_driving import Office, desk, lazy_ring, slow_ring

from slackline.circuit import RingOptions, cached_ring

# The limit leaves time to compile a circuit on a busy machine.
pytestmark = [pytest.mark.simulates, pytest.mark.timeout(300)]

OPTIONS = RingOptions(lanes=1, slots=2, payload_bytes=128, operations=8)


def queues_fail() -> str:
    """Run queues of several sizes, which are full at times; return the first error, or ""."""
    from slackline.circuit import Simulation, convert

    verilog = convert("desk", desk(OPTIONS))
    for seed, (descriptors, completions) in enumerate(((2, 8), (16, 2))):
        with Simulation(verilog) as simulation:
            for stream in range(4):
                simulation.stall(stream, 0.2, stream + 1, output=True)
            rng = np.random.default_rng(seed)
            office = Office(
                simulation, OPTIONS, rng, descriptors=descriptors, completions=completions
            )
            try:
                if found := office.run(100, turns=3000):
                    return found
            except ValueError as error:
                # The driver refuses a code that does not exist.
                return str(error)
    return ""


def doorbells_fail() -> str:
    """Ring doorbells with impossible values; return the register that changed, or ""."""
    from slackline.circuit import Simulation, convert

    with Simulation(convert("desk", desk(OPTIONS))) as simulation:
        rng = np.random.default_rng(1)
        office = Office(simulation, OPTIONS, rng, descriptors=4, completions=4)
        driver = office.driver
        for name, value in (("descriptor_tail", 5), ("completion_taken", 1)):
            driver.write(name, value)
            simulation.step(4)
            if driver.read(name) != 0:
                return f"{name} is {driver.read(name)}"
    return ""


_BEHIND = """done.w_data.eq(ends.r_data[:-1]),
            done.w_en.eq(moves & last & ends.r_data[-1]),"""
_BEFORE = "done.w_data.eq(job.key), done.w_en.eq(begins & job.ends),"
MUTANTS = {
    "phase": Mutant(
        "ring.queue._completions",
        ("CompletionQueue",),
        ("ring.queue._queues",),
        "~(self.tail >> self.bits[:5])[0]",
        "1",
        queues_fail,
    ),
    "wrap of the descriptors": Mutant(
        "ring.queue._descriptors",
        ("DescriptorQueue",),
        ("ring.queue._queues",),
        "((asked & mask) << shift)",
        "(asked << shift)",
        queues_fail,
    ),
    "wrap of the completions": Mutant(
        "ring.queue._completions",
        ("CompletionQueue",),
        ("ring.queue._queues",),
        "self.tail & mask",
        "self.tail",
        queues_fail,
    ),
    "room for a completion": Mutant(
        "ring.queue._completions",
        ("CompletionQueue",),
        ("ring.queue._queues",),
        "room.eq(here < entries)",
        "room.eq(here <= entries)",
        queues_fail,
    ),
    "reading ahead": Mutant(
        "ring.queue._descriptors",
        ("DescriptorQueue",),
        ("ring.queue._queues",),
        "(ahead < _AHEAD)",
        "(ahead < 2 * _AHEAD)",
        queues_fail,
    ),
    "a place that is free too early": Mutant(
        "ring.queue._descriptors",
        ("DescriptorQueue",),
        ("ring.queue._queues",),
        "m.d.sync += entry.eq(waiting.r_data)\n",
        "m.d.sync += [entry.eq(waiting.r_data), self.head.eq(self.head + waiting.r_rdy)]\n",
        queues_fail,
    ),
    "whose data go first": Mutant(
        "ring.queue._sharing",
        ("SharedWrites",),
        ("ring.queue._queues",),
        "user = turns.user\n        m.d.comb += [\n            o.valid",
        "user = other.valid\n        m.d.comb += [\n            o.valid",
        queues_fail,
    ),
    "a doorbell beyond the queue": Mutant(
        "ring.queue._descriptors",
        ("DescriptorQueue",),
        ("ring.queue._queues",),
        "(told > entries) | ",
        "",
        doorbells_fail,
    ),
    "a doorbell for what is not there": Mutant(
        "ring.queue._completions",
        ("CompletionQueue",),
        ("ring.queue._queues",),
        "self.wrong.eq(rung & (",
        "self.wrong.eq(0 & (",
        doorbells_fail,
    ),
    "a completion before its data": Mutant(
        "ring._dma",
        ("RingWrites",),
        ("ring._nic",),
        _BEHIND,
        _BEFORE,
        lambda: slow_ring(OPTIONS),
    ),
    "a place for a completion": Mutant(
        "ring._dma",
        ("RingWrites",),
        ("ring._nic",),
        "(places.any() | ~ends_one)",
        "1",
        lambda: lazy_ring(OPTIONS),
    ),
}

SOON = ("phase",)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in SOON else [pytest.mark.slow]) for name in MUTANTS],
)
def test_a_mutant_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(MUTANTS[name], monkeypatch)
    assert MUTANTS[name].check() != ""


@pytest.mark.slow  # test_ring_queues.py has the same checks in every run
def test_the_queues_pass_where_mutants_fail() -> None:
    assert queues_fail() == ""
    assert doorbells_fail() == ""


@pytest.mark.slow
def test_a_ring_with_slow_memory_passes_where_mutants_fail() -> None:
    assert slow_ring(OPTIONS, cached_ring(OPTIONS)) == ""

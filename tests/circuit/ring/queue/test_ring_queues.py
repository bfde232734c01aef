"""Tests of a ring NIC's queues: their order, completions behind the data, and no overrun."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from slackline.circuit import Code, RingOptions, cached_ring

pytest.importorskip("amaranth", reason="amaranth is missing: slackline-torch[circuit]")

from queue_driving import Office, Work, desk, lazy_ring

# The limit leaves time to compile a circuit on a busy machine.
pytestmark = [pytest.mark.simulates, pytest.mark.timeout(300)]

OPTIONS = RingOptions(lanes=1, slots=2, payload_bytes=128, operations=8)


@pytest.fixture(scope="session")
def verilog() -> Any:
    from slackline.circuit import convert

    return convert("desk", desk(OPTIONS))


@pytest.fixture
def open_office(verilog: Any) -> Iterator[Callable[..., Office]]:
    from slackline.circuit import Simulation

    opened: list[Simulation] = []

    def office(seed: int, stall: float = 0, latency: int = 0, **how: Any) -> Office:
        opened.append(simulation := Simulation(verilog))
        simulation.memory_latency(latency)
        for stream in range(5):
            simulation.stall(stream, stall, 2 * stream + 1)
        # The stream of data for the NIC is never stalled, because the NIC takes its data at once.
        for stream in range(4):
            simulation.stall(stream, stall, 2 * stream + 2, output=True)
        return Office(simulation, OPTIONS, np.random.default_rng(seed), **how)

    yield office
    for simulation in opened:
        simulation.close()


@pytest.mark.parametrize(("stall", "latency"), [(0, 0), (0.3, 0), (0.1, 100)])
@pytest.mark.parametrize(("descriptors", "completions"), [(1, 1), (2, 8), (16, 2), (8, 8)])
def test_every_descriptor_is_answered_once_behind_its_data(
    open_office, stall, latency, descriptors, completions
) -> None:
    office = open_office(
        descriptors, stall, latency, descriptors=descriptors, completions=completions
    )
    assert office.run(200, turns=8000) == ""
    assert set(office.codes) == set(Code) - {Code.READ}
    refused = office.codes.total() - office.codes[Code.DONE]
    assert office.driver.read("descriptors_refused") == refused
    assert office.driver.read("doorbells_refused") == 0
    assert office.driver.read("descriptor_head") == 200


def test_a_host_that_takes_nothing_stops_the_queue_and_loses_nothing(open_office) -> None:
    office = open_office(1, descriptors=8, completions=2, lazy=1)
    assert office.run(6, turns=100) == "0 of 6 were answered"
    driver = office.driver
    assert (driver.read("completion_tail"), driver.read("completion_taken")) == (2, 0)
    assert driver.read("no_completion_room") > 100
    assert office.line() == 1
    office.lazy = 0
    while sum(office.done.values()) < 6:
        office._take()
        office._as_nic()
        office.simulation.step(50)
    assert set(office.done.values()) == {1}
    assert office.said == ""


def test_the_interrupt_is_high_while_completions_wait_and_it_is_enabled(open_office) -> None:
    office = open_office(1, descriptors=4, completions=4)
    driver, simulation = office.driver, office.simulation
    assert office.line() == 0
    driver.put(Work(office.rng, 1, Code.TOTAL).entry)
    driver.put(Work(office.rng, 2, Code.DTYPE).entry)
    driver.ring()
    simulation.settle(quiet=50, cycles=10_000)
    assert office.line() == 1
    driver.write("interrupt", 0)
    assert office.line() == 0
    driver.write("interrupt", 1)
    driver.write("completion_taken", 1)
    simulation.step(2)
    assert office.line() == 1
    driver.write("completion_taken", 2)
    simulation.step(2)
    assert office.line() == 0


def test_a_doorbell_beyond_what_can_be_is_counted_and_ignored(open_office) -> None:
    office = open_office(1, descriptors=4, completions=4)
    driver, simulation = office.driver, office.simulation
    # The values are beyond the queue, behind the last one, and for completions that do not exist.
    for name, value in (
        ("descriptor_tail", 5),
        ("descriptor_tail", 0xFFFFFFFF),
        ("completion_taken", 1),
        ("completion_taken", 0xFFFFFFFF),
    ):
        driver.write(name, value)
        simulation.settle(quiet=50, cycles=10_000)
        assert driver.read(name) == 0
    assert driver.read("doorbells_refused") == 4
    driver.put(Work(office.rng, 1, Code.TOTAL).entry)
    driver.put(Work(office.rng, 2, Code.TOTAL).entry)
    driver.ring()
    simulation.settle(quiet=50, cycles=10_000)
    driver.write("descriptor_tail", 1)
    driver.write("completion_taken", 3)
    simulation.step(4)
    assert driver.read("doorbells_refused") == 6
    assert (driver.read("descriptor_tail"), driver.read("descriptor_head")) == (2, 2)
    assert [each.key[0] for each in driver.completions()] == [1, 2]
    # A queue cannot have that many entries, so no doorbell is valid.
    driver.write("control", 0)
    driver.write("descriptor_bits", 17)
    driver.write("control", 1)
    driver.write("descriptor_tail", 1)
    simulation.step(4)
    assert (driver.read("doorbells_refused"), driver.read("descriptor_tail")) == (7, 0)


def test_hosts_that_seldom_take_their_one_completion_get_all_of_them() -> None:
    assert lazy_ring(OPTIONS, cached_ring(OPTIONS)) == ""

"""Tests that lanes and their twin (Python model) give bit-identical results."""

from collections.abc import Iterator

import numpy as np
import pytest
from circuit_driving import lanes_differ, random_pairs, run_lanes, special_pairs

from slackline.circuit import CANONICAL_NAN, Element, twins

# The limit leaves time to compile a circuit on a busy machine.
pytestmark = [pytest.mark.simulates, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=[1, pytest.param(4, marks=pytest.mark.slow)])
def lanes(request: pytest.FixtureRequest) -> Iterator[tuple[object, int]]:
    from slackline.circuit import Lanes, Simulation, convert

    count: int = request.param
    with Simulation(convert("lanes", Lanes(count))) as simulation:
        yield simulation, count


@pytest.mark.parametrize("element", [Element.FLOAT32, Element.INT32])
def test_all_pairs_of_special_numbers_add_as_in_numpy(lanes, element) -> None:
    assert lanes_differ(*lanes, *special_pairs(), element) == ""


@pytest.mark.parametrize("millions", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_millions_of_random_pairs_add_as_in_numpy(lanes, millions) -> None:
    rng = np.random.default_rng(millions)
    for _ in range(millions):
        assert lanes_differ(*lanes, *random_pairs(rng, 1_000_000), Element.FLOAT32) == ""


def test_integers_wrap_as_in_numpy(lanes) -> None:
    pairs = random_pairs(np.random.default_rng(2), 20_000)
    assert lanes_differ(*lanes, *pairs, Element.INT32) == ""


@pytest.mark.parametrize("element", [Element.BFLOAT16, Element.FLOAT16])
def test_every_half_is_widened_and_added_in_fp32(lanes, element) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    others = np.random.default_rng(3).permutation(halves)
    assert lanes_differ(*lanes, halves.view(np.uint32), others.view(np.uint32), element) == ""


@pytest.mark.parametrize("element", list(Element))
@pytest.mark.parametrize(("valid", "ready"), [(0.5, 0.0), (0.0, 0.5), (0.3, 0.3), (0.9, 0.9)])
def test_no_stall_loses_or_doubles_a_sum(lanes, element, valid, ready) -> None:
    simulation, count = lanes
    simulation.stall(0, valid, 11)
    simulation.stall(0, ready, 12, output=True)
    difference = lanes_differ(
        simulation, count, *random_pairs(np.random.default_rng(4), 500), element
    )
    simulation.stall(0, 0, 1)
    simulation.stall(0, 0, 1, output=True)
    assert difference == ""


def test_a_sum_leaves_every_cycle_sixteen_cycles_after_its_pair(lanes) -> None:
    simulation, count = lanes
    start = simulation.step(0)
    beats = np.zeros((200, 8 * count + 1), np.uint8)
    simulation.push(0, beats)
    simulation.run(200, cycles=1000)
    _, cycles = simulation.pull(0)
    assert (cycles - start).tolist() == list(range(16, 216))


def test_every_nan_is_the_canonical_one(lanes) -> None:
    nans = np.array([0x7F800001, 0xFFC00001, 0x7F800000, 0xFF800000], np.uint32)
    others = np.array([0x3F800000, 0x7FC00002, 0xFF800000, 0x7F800000], np.uint32)
    found = run_lanes(*lanes, nans, others, Element.FLOAT32)
    assert found.tolist() == [CANONICAL_NAN] * 4


def test_the_twin_of_lanes_knows_the_special_sums() -> None:
    inf, tiny, negative_zero = 0x7F800000, 1, 0x80000000
    a = np.array([inf, tiny, 0x3F800000, negative_zero, 0x7F7FFFFF], np.uint32)
    b = np.array([inf, tiny, 0xBF800000, negative_zero, 0x73000000], np.uint32)
    assert twins.add(a, b).tolist() == [inf, 2, 0, negative_zero, inf]

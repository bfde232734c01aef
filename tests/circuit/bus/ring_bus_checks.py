"""Checks of a ring NIC's buses, run within Icarus by cocotb; test_ring_bus.py starts them."""

from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, RisingEdge, with_timeout
from ring_bus_bench import DESCRIPTORS, OPTIONS, WAIT, begin
from ring_driving import DTYPES, tensors

from slackline.wire import DType


async def sum_tensors(dut: Any, rank: int, seed: int, pauses: float) -> None:
    """Sum more tensors than both queues hold, of all types, some with a partly filled last beat."""
    bench = await begin(dut, rank, seed, pauses)
    await bench.open()
    rng = np.random.default_rng(seed)
    posted = [
        tensors(rng, OPTIONS, 2, DTYPES[tag % 4], int(rng.integers(1, 50)), tag)
        for tag in range(2 * DESCRIPTORS + 1)
    ]
    await bench.sums(posted)
    assert await bench.read("completed") == len(posted)
    assert await bench.read("doorbells_refused") == 0
    assert await bench.read("malformed") == await bench.read("unexpected") == 0
    await ClockCycles(dut.aclk, 4)
    assert dut.interrupt.value == 0


@cocotb.test()
async def the_last_rank_sums_what_its_queue_says_at_full_pace(dut: Any) -> None:
    await sum_tensors(dut, rank=1, seed=1, pauses=0)


@cocotb.test()
async def the_first_rank_sends_what_its_queue_says_whatever_pauses(dut: Any) -> None:
    await sum_tensors(dut, rank=0, seed=2, pauses=0.4)


@cocotb.test()
async def the_last_rank_sums_what_its_queue_says_whatever_pauses(dut: Any) -> None:
    await sum_tensors(dut, rank=1, seed=3, pauses=0.4)


@cocotb.test()
async def what_cannot_be_is_refused_with_its_code_and_nothing_else_happens(dut: Any) -> None:
    bench = await begin(dut, rank=1, seed=4, pauses=0.2)
    await bench.open()
    rng = np.random.default_rng(4)
    wrong = tensors(rng, OPTIONS, 2, DType.FLOAT32, 16, 1).operation(1)
    bench.put(wrong, 0x1000, total=0)
    bench.put(wrong, 0x1000, total=6)
    bench.put(wrong, 0x1000, frame_bytes=96)
    bench.put(wrong, 0x1000, frame_bytes=256)
    await bench.ring()
    while len(bench.answers) < 4:
        await with_timeout(bench.wait(), *WAIT)
    assert bench.answers == [(1, 0, 2), (1, 0, 2), (1, 0, 3), (1, 0, 3)]
    await bench.write("descriptor_tail", bench.tail + DESCRIPTORS + 1)
    assert await bench.read("descriptor_tail") == bench.tail
    assert await bench.read("doorbells_refused") == 1
    bench.answers.clear()
    await bench.sums([tensors(rng, OPTIONS, 2, DType.FLOAT32, 16, 1)])


@cocotb.test()
async def a_reset_in_the_middle_leaves_a_nic_like_new(dut: Any) -> None:
    bench = await begin(dut, rank=0, seed=5, pauses=0.2)
    await bench.open()
    rng = np.random.default_rng(5)
    bench.put(tensors(rng, OPTIONS, 2, DType.FLOAT32, 60, 1).operation(0), 0x1000)
    await bench.ring()
    while dut.m_axis_tx_tvalid.value == 0:
        await RisingEdge(dut.aclk)
    await ClockCycles(dut.aclk, 30)
    await bench.reset()
    for each in (*bench.sources.values(), *bench.sinks.values()):
        each.clear()
    assert await bench.read("descriptor_tail") == await bench.read("completion_tail") == 0
    await bench.open()
    await bench.sums([tensors(rng, OPTIONS, 2, DType.INT32, 20, 2)])

"""Checks of a node's buses, run within Icarus by cocotb; test_bus.py starts them."""

import random
from typing import Any

import cocotb
from bus_bench import OPTIONS, REGISTERS, WAIT, begin
from cocotb.triggers import ClockCycles, RisingEdge, with_timeout
from cocotbext.axi import AxiResp, AxiStreamFrame

from slackline.circuit import ELEMENTS

DTYPES = list(ELEMENTS)


@cocotb.test()
async def registers_read_what_was_written(dut: Any) -> None:
    bench = await begin(dut, seed=1, pauses=0.4)
    for name, each in REGISTERS.items():
        assert await bench.read(name) == each.value, name
    settings = [each for each in REGISTERS.values() if each.kind == "setting"]
    for k, each in enumerate(settings):
        await bench.write(each.name, 0x89ABCDE0 + 2 * k)
    for k, each in enumerate(settings):
        assert await bench.read(each.name) == 0x89ABCDE0 + 2 * k, each.name
    await bench.write("identity", 1)
    assert await bench.read("identity") == REGISTERS["identity"].value
    beyond = await bench.master.read(0x3FFFC, 4)
    assert (beyond.data, beyond.resp) == (bytes(4), AxiResp.OKAY)


@cocotb.test()
async def reads_and_writes_under_way_at_once_do_not_disturb_each_other(dut: Any) -> None:
    bench = await begin(dut, seed=2, pauses=0.3)
    job, ports = REGISTERS["job"].address, REGISTERS["ports"].address
    writes = [bench.master.init_write(job, k.to_bytes(4, "little")) for k in range(40)]
    reads = [bench.master.init_read(ports, 4) for _ in range(40)]
    for each in (*writes, *reads):
        await each.wait()
    assert all(each.data.resp == AxiResp.OKAY for each in (*writes, *reads))
    assert {bytes(each.data.data) for each in reads} == {OPTIONS.ports.to_bytes(4, "little")}
    assert await bench.read("job") == 39


@cocotb.test()
async def a_part_of_a_register_is_not_written_and_answered_with_an_error(dut: Any) -> None:
    bench = await begin(dut, seed=3, pauses=0)
    await bench.write("job", 0x11223344)
    done = await bench.master.write(REGISTERS["job"].address + 1, b"\x99")
    assert done.resp == AxiResp.SLVERR
    assert await bench.read("job") == 0x11223344


async def sum_tensors(dut: Any, seed: int, pauses: float) -> None:
    """Sum tensors of all types, some with a partly filled last beat, and compare with the twin."""
    bench = await begin(dut, seed=seed, pauses=pauses)
    await bench.open()
    draw = random.Random(seed)
    for tag in range(10):
        dtype = DTYPES[tag % 4]
        size = dtype.itemsize * draw.choice((1, 3, 7, 16, 33))
        for port, sender in enumerate(bench.senders):
            for frame in sender.message(draw.randbytes(size), dtype, tag, 64):
                bench.send(port, frame)
    await bench.agree()


@cocotb.test()
async def sums_at_full_pace_are_those_of_the_twin(dut: Any) -> None:
    await sum_tensors(dut, seed=4, pauses=0)


@cocotb.test()
async def sums_are_those_of_the_twin_whatever_pauses(dut: Any) -> None:
    await sum_tensors(dut, seed=5, pauses=0.5)


@cocotb.test()
async def damaged_packets_are_counted_and_what_follows_is_summed(dut: Any) -> None:
    bench = await begin(dut, seed=6, pauses=0.2)
    await bench.open()
    draw = random.Random(6)
    frames = [sender.message(draw.randbytes(12), DTYPES[0], 1, 64)[0] for sender in bench.senders]
    bench.send(0, frames[0], bad=True)
    # The three frames are a byte too short, a byte too long, and without a byte in the middle.
    bench.macs[1].send_nowait(AxiStreamFrame(frames[1][:-1]))
    bench.macs[1].send_nowait(AxiStreamFrame(frames[1][:-4] + bytes(5)))
    kept = [1] * len(frames[1])
    kept[66] = 0
    bench.macs[1].send_nowait(AxiStreamFrame(frames[1], tkeep=kept))
    bench.twin.events[1]["malformed"] += 3
    for port, frame in enumerate(frames):
        bench.send(port, frame)
    assert len(bench.wanted) == 1
    await bench.agree()


@cocotb.test()
async def a_reset_in_the_middle_leaves_a_node_like_new(dut: Any) -> None:
    bench = await begin(dut, seed=7, pauses=0.3)
    await bench.open()
    draw = random.Random(7)
    for port, sender in enumerate(bench.senders):
        for frame in sender.message(draw.randbytes(192), DTYPES[0], 1, 64):
            bench.macs[port].send_nowait(AxiStreamFrame(frame))
    while dut.m_axis_tx0_tvalid.value == 0:
        await RisingEdge(dut.aclk)
    await bench.reset()
    for each in (*bench.macs, *bench.readers):
        each.clear()
    await ClockCycles(dut.aclk, 100)
    assert all(reader.empty() for reader in bench.readers)
    await bench.open()
    for port in range(OPTIONS.ports):
        assert await bench.read(f"port{port}_accepted") == 0
    for sender in bench.senders:
        sender.next_sequence = 1
    for port, sender in enumerate(bench.senders):
        bench.send(port, sender.message(draw.randbytes(20), DTYPES[0], 2, 64)[0])
    await bench.agree()


@cocotb.test()
async def control_written_within_a_packet_ends_it_as_damaged_and_the_next_is_whole(
    dut: Any,
) -> None:
    bench = await begin(dut, seed=8, pauses=0.4)
    await bench.open()
    draw = random.Random(8)
    damaged, whole = 0, 0
    for _ in range(6):
        for port, sender in enumerate(bench.senders):
            sender.next_sequence = 1
            for frame in sender.message(draw.randbytes(128), DTYPES[0], 1, 64):
                bench.macs[port].send_nowait(AxiStreamFrame(frame))
        while dut.m_axis_tx0_tvalid.value == 0:
            await RisingEdge(dut.aclk)
        await ClockCycles(dut.aclk, draw.randrange(60))
        await bench.write("control", 0)
        # A frame that has begun ends; a frame that has not is held up while the node is closed.
        await ClockCycles(dut.aclk, 300)
        await bench.write("control", 1)
        for mac in bench.macs:
            await with_timeout(mac.wait(), *WAIT)
        await ClockCycles(dut.aclk, 100)
        for reader in bench.readers:
            while not reader.empty():
                packet = reader.recv_nowait()
                if packet.tuser if isinstance(packet.tuser, int) else packet.tuser[-1]:
                    damaged += 1
                    continue
                whole += 1
                assert len(packet.tdata) == 64 + int.from_bytes(packet.tdata[48:52], "little")
    assert damaged >= 6
    for port, sender in enumerate(bench.senders):
        sender.next_sequence = 1
        for event in bench.twin.events[port]:
            bench.twin.events[port][event] = await bench.read(f"port{port}_{event}")
        assert bench.twin.events[port]["malformed"] == 0
    for port, sender in enumerate(bench.senders):
        bench.send(port, sender.message(draw.randbytes(20), DTYPES[0], 2, 64)[0])
    await bench.agree()
    assert whole + damaged <= 24

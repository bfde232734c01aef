"""Tests of registers over Ethernet: the port has the answers of its twin, whatever comes."""

import random
from collections import deque
from typing import Any

import pytest

from slackline.circuit import (
    REGISTERS_ETHERTYPE,
    Register,
    RegisterCode,
    RegisterRequest,
    RegisterTwin,
)

pytest.importorskip("amaranth", reason="amaranth is missing: slackline-torch[circuit]")

NODE, HOSTS = 0x02534C000000, (0x021122334455, 0x026677889900)
SETTINGS = {0x10: 5, 0x14: 6}
CONSTANT = 0x0C


def packet(source: int, request: RegisterRequest, *, to: int = NODE, kind: int = 0) -> bytes:
    header = to.to_bytes(6, "big") + source.to_bytes(6, "big")
    kind = kind or REGISTERS_ETHERTYPE
    return (header + kind.to_bytes(2, "big") + request.encode()).ljust(60, b"\0")


def answers(lanes: int, packets: list[tuple[bytes, bool]]) -> list[bytes]:
    """Return the packets of a RegisterPort before two settings and a constant.

    Each packet comes when the answer to the one before has left; a packet may be damaged.
    """
    from amaranth.hdl import Module
    from amaranth.lib import wiring
    from amaranth.sim import Simulator

    from slackline.circuit.bus import Bank, RegisterPort

    table = [
        Register(name="one", address=0x10, kind="setting", meaning="", value=SETTINGS[0x10]),
        Register(name="two", address=0x14, kind="setting", meaning="", value=SETTINGS[0x14]),
        Register(name="same", address=CONSTANT, kind="constant", meaning="", value=77),
    ]
    port, bank = RegisterPort(lanes), Bank(table)
    m = Module()
    m.submodules.port, m.submodules.bank = port, bank
    wiring.connect(m, port.o, bank.bus)
    size, found = 4 * lanes, list[bytes]()

    async def drive(ctx: Any) -> None:
        ctx.set(port.address, NODE)
        for data, damaged in packets:
            for at in range(0, len(data), size):
                part = data[at : at + size]
                ctx.set(port.rx.tdata, int.from_bytes(part, "little"))
                ctx.set(port.rx.tlast, at + size >= len(data))
                ctx.set(port.rx.tuser, damaged)
                ctx.set(port.taken, 1)
                await ctx.tick()
            ctx.set(port.taken, 0)
            for _ in range(40):
                await ctx.tick()

    async def read(ctx: Any) -> None:
        draw, parts = random.Random(lanes), list[bytes]()
        while True:
            ready = draw.random() < 0.7
            ctx.set(port.tx.tready, ready)
            valid, last = ctx.get(port.tx.tvalid), ctx.get(port.tx.tlast)
            if valid and ready:
                keep = ctx.get(port.tx.tkeep).bit_count()
                parts.append(ctx.get(port.tx.tdata).to_bytes(size, "little")[:keep])
                if last:
                    found.append(b"".join(parts))
                    parts.clear()
            await ctx.tick()

    simulator = Simulator(m)
    simulator.add_clock(1e-9)
    simulator.add_testbench(drive)
    simulator.add_testbench(read, background=True)
    simulator.run()
    return found


@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_the_port_answers_as_its_twin_whatever_comes_in_which_order(lanes: int) -> None:
    draw = random.Random(3)
    twin = RegisterTwin(registers={**SETTINGS, CONSTANT: 77})
    latest = deque[tuple[int, RegisterRequest]](maxlen=4)
    packets, expected = [], []
    for number in range(120):
        if latest and draw.random() < 0.3:
            source, request = draw.choice(latest)
        else:
            source = draw.choice(HOSTS)
            count = (twin.count + draw.choice((1, 1, 1, 0, 2, -1))) & 0xFFFFFFFF
            request = RegisterRequest(
                code=draw.choice(list(RegisterCode)),
                number=draw.choice((number, 7)),
                address=draw.choice((0x10, 0x14, 0x40)),
                value=draw.getrandbits(32),
                count=count,
            )
            latest.append((source, request))
        fate = draw.random()
        damaged, to, kind = fate < 0.05, NODE, 0
        if 0.05 < fate < 0.1:
            to = NODE + 1
        if 0.1 < fate < 0.15:
            kind = 0x88B5
        packets.append((packet(source, request, to=to, kind=kind), damaged))
        if damaged or to != NODE or kind:
            continue
        answer = twin.take(source, request)
        if answer is not None:
            expected.append(packet(NODE, answer, to=source))
    assert {each[17] for each in expected} == {RegisterCode.DONE, RegisterCode.STALE}
    assert answers(lanes, packets) == expected
    assert len(expected) > 40


def test_a_write_is_executed_once_and_a_constant_is_not_written() -> None:
    write = RegisterRequest(code=RegisterCode.WRITE, number=3, address=0x10, value=9, count=1)
    later = RegisterRequest(code=RegisterCode.WRITE, number=4, address=0x10, value=8, count=2)
    constant = RegisterRequest(code=RegisterCode.WRITE, number=5, address=CONSTANT, count=3)
    read = RegisterRequest(code=RegisterCode.READ, number=6, address=0x10)
    read_constant = RegisterRequest(code=RegisterCode.READ, number=7, address=CONSTANT)
    host = HOSTS[0]
    sent = [write, later, write, read, later, constant, read_constant]
    found = [
        RegisterRequest.decode(each[14:])
        for each in answers(4, [(packet(host, each), False) for each in sent])
    ]
    told = [(each.code, each.value, each.count) for each in found if each is not None]
    assert told == [
        (RegisterCode.DONE, 9, 1),
        (RegisterCode.DONE, 8, 2),
        (RegisterCode.STALE, 9, 2),
        (RegisterCode.DONE, 8, 2),
        (RegisterCode.DONE, 8, 2),
        (RegisterCode.DONE, 0, 3),
        (RegisterCode.DONE, 77, 3),
    ]

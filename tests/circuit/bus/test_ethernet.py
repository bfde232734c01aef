"""Tests of frames in Ethernet packets: bytes, pauses, addresses and cycles."""

import random
from dataclasses import dataclass
from typing import Any

import pytest

from slackline.circuit import EthernetPort, frame_of, packet_of

pytest.importorskip("amaranth", reason="amaranth is missing: slackline-torch[circuit]")

ADDRESS, PEER, ALL = 0x020000000001, 0x0200000000A2, 0xFFFFFFFFFFFF
SIZES = [1, 2, 3, 13, 14, 15, 49, 50, 51, 63, 64, 65, 114, 115, 128, 142, 178, 179, 200]
PACKETS = 5
"""The packets that follow each other without a gap."""


@dataclass
class Seen:
    """The packets that came out, each with whether it was damaged, and the cycle of each beat."""

    packets: list[tuple[bytes, bool]]
    cycles: list[int]
    filtered: int


def passed(
    lanes: int,
    packets: list[tuple[bytes, bool]],
    *,
    out: bool,
    seed: int = 0,
    pauses: float = 0.0,
    port: Any = None,
) -> Seen:
    """Drive packets through a port, from frames to packets (`out`) or back; return what came out.

    Both sides pause in a share `pauses` of the cycles.
    """
    from amaranth.hdl import Module
    from amaranth.sim import Simulator

    m = Module()
    m.submodules.port = port = port or EthernetPort(lanes)
    source, sink = (port.i, port.tx) if out else (port.rx, port.o)
    size = 4 * lanes
    seen = Seen([], [], 0)
    draw = random.Random(seed)

    async def drive(context: Any) -> None:
        context.set(port.address, ADDRESS)
        context.set(port.peer, PEER)
        for packet, damaged in packets:
            for at in range(0, len(packet), size):
                part = packet[at : at + size]
                while draw.random() < pauses:
                    context.set(source.tvalid, 0)
                    await context.tick()
                ends = at + size >= len(packet)
                context.set(source.tdata, int.from_bytes(part, "little"))
                context.set(source.tkeep, (1 << len(part)) - 1)
                context.set(source.tlast, ends)
                context.set(source.tuser, ends and damaged)
                context.set(source.tvalid, 1)
                await context.tick().until(source.tready)
        context.set(source.tvalid, 0)
        await context.tick().repeat(40)

    async def read(context: Any) -> None:
        cycle, whole, held = 0, b"", None
        while True:
            context.set(sink.tready, draw.random() >= pauses)
            _, _, valid, ready, data, keep, last, user, filtered = await context.tick().sample(
                sink.tvalid,
                sink.tready,
                sink.tdata,
                sink.tkeep,
                sink.tlast,
                sink.tuser,
                port.filtered,
            )
            cycle += 1
            seen.filtered += filtered
            now = (data, keep, last, user)
            assert held is None or (valid and held == now), "a beat that waits has changed"
            held = now if valid and not ready else None
            if valid and ready:
                count = keep.bit_count()
                assert keep == (1 << count) - 1
                assert last or count == size
                seen.cycles.append(cycle)
                whole += data.to_bytes(size, "little")[:count]
                if last:
                    seen.packets.append((whole, bool(user)))
                    whole = b""

    simulator = Simulator(m)
    simulator.add_clock(1e-9)
    simulator.add_testbench(drive)
    simulator.add_testbench(read, background=True)
    simulator.run()
    return seen


def frames(seed: int) -> list[tuple[bytes, bool]]:
    draw = random.Random(seed)
    return [(draw.randbytes(size), draw.random() < 0.2) for size in draw.sample(SIZES, len(SIZES))]


@pytest.mark.parametrize("lanes", [1, 2, 4, 16])
@pytest.mark.parametrize("pauses", [0.0, 0.3])
def test_each_frame_leaves_behind_its_header(lanes: int, pauses: float) -> None:
    given = frames(lanes)
    seen = passed(lanes, given, out=True, seed=lanes, pauses=pauses)
    wanted = [(packet_of(f, destination=PEER, source=ADDRESS), bad) for f, bad in given]
    assert seen.packets == wanted


@pytest.mark.parametrize("lanes", [1, 2, 4, 16])
@pytest.mark.parametrize("pauses", [0.0, 0.3])
def test_what_is_for_this_port_comes_in_without_its_header(lanes: int, pauses: float) -> None:
    draw = random.Random(7)
    packets = []
    for frame, bad in frames(lanes + 100):
        meant = draw.choice([ADDRESS, ADDRESS, ALL, PEER, ADDRESS ^ 1])
        packet = bytearray(packet_of(frame, destination=meant, source=PEER))
        if draw.random() < 0.2:
            packet[draw.choice([12, 13])] ^= 1 << draw.randrange(8)
        if draw.random() < 0.2:
            packet = packet[: draw.randint(1, 14)]
        packets.append((bytes(packet), bad))
    seen = passed(lanes, packets, out=False, seed=lanes, pauses=pauses)
    wanted = [(frame_of(packet, address=ADDRESS), bad) for packet, bad in packets]
    assert seen.packets == [(frame, bad) for frame, bad in wanted if frame is not None]
    assert seen.filtered == sum(frame is None for frame, _ in wanted) > 3


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("size", [64, 114, 115, 128, 1088])
def test_packets_that_come_without_a_gap_are_taken_without_a_gap(lanes: int, size: int) -> None:
    packets = [(packet_of(bytes(size), destination=ADDRESS, source=PEER), False)] * PACKETS
    seen = passed(lanes, packets, out=False)
    beats = -(-(size + 14) // (4 * lanes))
    # The first beat waits for the header, and the last may need a cycle of its own.
    assert len(seen.packets) == PACKETS
    assert seen.cycles[-1] <= PACKETS * beats + 2


@pytest.mark.parametrize("size", [64, 114, 115, 128, 1088])
def test_a_packet_leaves_in_its_own_beats(size: int) -> None:
    seen = passed(16, [(bytes(size), False)] * PACKETS, out=True)
    beats = -(-(size + 14) // 64)
    assert seen.cycles == list(range(seen.cycles[0], seen.cycles[0] + PACKETS * beats))
    assert seen.cycles[0] <= 2


def test_the_type_and_both_addresses_are_where_ethernet_has_them() -> None:
    packet = packet_of(b"frame", destination=0x0102030405A6, source=0x0708090A0BAC)
    assert packet == bytes.fromhex("0102030405a60708090a0bac88b5") + b"frame"
    assert frame_of(packet, address=0x0102030405A6) == b"frame"
    assert frame_of(packet, address=0x0708090A0BAC) is None

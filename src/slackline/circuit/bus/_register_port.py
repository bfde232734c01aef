"""A circuit's registers behind its MAC: requests of a driver elsewhere, and their answers."""

from amaranth.hdl import Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from slackline.circuit.bus._axi_stream import axi_frames
from slackline.circuit.bus._bank import BUS
from slackline.circuit.bus._ethernet import network_order
from slackline.circuit.options import (
    REGISTERS_ETHERTYPE,
    REQUEST_BYTES,
    RegisterCode,
    RegisterRequest,
    check_lanes,
)

__all__ = ["PacketMerge", "RegisterPort"]

_ETHERNET = 14
_SHORTEST = 60
"""Bytes of the shortest packet of an Ethernet, without its frame check sequence."""
_START = int.from_bytes(RegisterRequest(code=RegisterCode.READ).encode()[:3], "little")


class _Request(data.StructLayout):
    """An Ethernet header and a RegisterRequest, the first byte lowest."""

    def __init__(self) -> None:
        super().__init__(
            {
                "destination": 48,
                "source": 48,
                "kind": 16,
                "start": 24,
                "code": 8,
                "number": 32,
                "address": 32,
                "value": 32,
                "count": 32,
            }
        )
        assert self.size == 8 * (_ETHERNET + REQUEST_BYTES)


class RegisterPort(wiring.Component):
    """A port for registers beside an EthernetPort, whose packets it listens to.

    rx, taken   the wires of the packets that come in; a beat of them moves in this cycle
    tx          AXI4-Stream of the answers, one packet of 60 bytes each
    o           BUS, the registers' side
    address     the port's address, the first byte on the wire highest
    peer        the address of the host whose write was executed last

    A request is answered to its sender. While an answer waits, further requests are dropped, so a
    driver has one request under way and sends it again if no answer comes. A damaged packet is
    dropped.

    The twin (bit-exact Python model) is slackline.circuit.RegisterTwin.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = check_lanes(lanes)
        frames = axi_frames(lanes)
        listened = wiring.Signature(
            {name: In(member.shape) for name, member in frames.members.items() if name != "tready"}
        )
        super().__init__(
            {
                "rx": Out(listened),
                "taken": In(1),
                "tx": Out(frames),
                "o": Out(BUS),
                "address": In(48),
                "peer": Out(48),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        size = 4 * self.lanes
        beats = -(-_Request().size // (8 * size))
        seen = Signal(8 * size * beats)
        at = Signal(range(beats + 1))
        ended, whole = Signal(), Signal()
        rx = self.rx
        with m.If(self.taken):
            with m.If(at != beats):
                m.d.sync += at.eq(at + 1)
            for k in range(beats):
                with m.If(at == k):
                    m.d.sync += seen[8 * size * k : 8 * size * (k + 1)].eq(rx.tdata)
            with m.If(rx.tlast):
                m.d.sync += at.eq(0)
        m.d.sync += [
            ended.eq(self.taken & rx.tlast & ~rx.tuser),
            # A request fills its last beat only in part, and Ethernet pads it to 60 bytes.
            whole.eq(at >= beats - 1),
        ]
        found, request = data.View(_Request(), seen[: _Request().size]), Signal(_Request())
        ours = Signal()
        m.d.comb += ours.eq(
            (network_order(found.destination, 6) == self.address)
            & (network_order(found.kind, 2) == REGISTERS_ETHERTYPE)
            & (found.start == _START)
            & (found.code <= RegisterCode.WRITE)
        )
        executed, latest = Signal(32), Signal(32)
        writes = request.code == RegisterCode.WRITE
        due = (request.count - executed)[:32]
        # A write that comes again is known by its count, its number and its sender.
        again = (
            ~due.any()
            & (request.number == latest)
            & (network_order(request.source, 6) == self.peer)
        )
        value = Signal(32)
        m.d.comb += [
            self.o.address.eq(request.address[2:18]),
            self.o.write_data.eq(request.value),
        ]
        answer = Signal(8 * _SHORTEST)
        packet = Signal(_Request())
        m.d.comb += [
            packet.destination.eq(request.source),
            packet.source.eq(network_order(self.address, 6)),
            packet.kind.eq(network_order(Const(REGISTERS_ETHERTYPE, 16), 2)),
            packet.start.eq(_START),
            packet.code.eq(Mux(writes & ~again, RegisterCode.STALE, RegisterCode.DONE)),
            packet.number.eq(request.number),
            packet.address.eq(request.address),
            packet.value.eq(Mux(writes, request.value, value)),
            packet.count.eq(executed),
        ]
        out_beats = -(-_SHORTEST // size)
        left = Signal(range(out_beats + 1))
        last_bytes = _SHORTEST - size * (out_beats - 1)
        with m.FSM():
            with m.State("LISTEN"):
                m.d.sync += request.eq(found)
                with m.If(ended & whole & ours):
                    m.next = "TURN"
            with m.State("TURN"):
                with m.If(writes & (due == 1)):
                    m.d.comb += self.o.write.eq(1)
                    m.d.sync += [
                        executed.eq(request.count),
                        latest.eq(request.number),
                        self.peer.eq(network_order(request.source, 6)),
                    ]
                m.next = "READ"
            with m.State("READ"):
                m.d.sync += value.eq(self.o.read_data)
                m.next = "PACK"
            with m.State("PACK"):
                m.d.sync += [answer.eq(packet.as_value()), left.eq(out_beats)]
                m.next = "ANSWER"
            with m.State("ANSWER"):
                last = left == 1
                m.d.comb += [
                    self.tx.tvalid.eq(1),
                    self.tx.tdata.eq(answer[: 8 * size]),
                    self.tx.tlast.eq(last),
                    self.tx.tkeep.eq(Mux(last, (1 << last_bytes) - 1, (1 << size) - 1)),
                ]
                with m.If(self.tx.tready):
                    m.d.sync += [answer.eq(answer >> (8 * size)), left.eq(left - 1)]
                    with m.If(last):
                        m.next = "LISTEN"
        return m


class PacketMerge(wiring.Component):
    """A merger of two AXI4-Streams of packets; packets of `first` go before those of `other`."""

    def __init__(self, lanes: int) -> None:
        frames = axi_frames(check_lanes(lanes))
        super().__init__({"first": In(frames), "other": In(frames), "o": Out(frames)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        first, other, o = self.first, self.other, self.o
        held, holder, user = Signal(), Signal(), Signal()
        # A packet that is offered must not be withdrawn, so the choice is kept until its end.
        m.d.comb += user.eq(Mux(held, holder, ~first.tvalid))
        for name in ("tdata", "tkeep", "tlast", "tuser", "tvalid"):
            m.d.comb += getattr(o, name).eq(Mux(user, getattr(other, name), getattr(first, name)))
        m.d.comb += [first.tready.eq(o.tready & ~user), other.tready.eq(o.tready & user)]
        with m.If(o.tvalid):
            m.d.sync += [held.eq(~(o.tready & o.tlast)), holder.eq(user)]
        return m

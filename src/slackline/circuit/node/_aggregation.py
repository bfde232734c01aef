"""The aggregation node: a circuit in the middle of a star of ranks, which adds their data."""

from amaranth.hdl import Cat, Const, Module, Mux, ResetInserter, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from slackline.circuit.bus import BUS, Bank
from slackline.circuit.frame import (
    ALL_REDUCE_SUM,
    HEADER,
    Beat,
    Crc,
    Frame,
    FrameInlet,
    FrameOutlet,
    after,
)
from slackline.circuit.node._issuer import STALLS, Issuer
from slackline.circuit.node._matcher import Matcher
from slackline.circuit.node._receiver import EVENTS, Receiver
from slackline.circuit.node._reducer import Reducer
from slackline.circuit.node._stage import port_stage
from slackline.circuit.node._sum_buffer import SumBuffer
from slackline.circuit.options import NodeOptions
from slackline.circuit.proof import assume, claim, ones
from slackline.circuit.registers import RESETTING, node_registers
from slackline.wire import MAGIC, VERSION, FrameKind

__all__ = ["AggregationNode", "HeaderWriter"]

_DROPPED = ("strangers", "overruns")


class AggregationNode(wiring.Component):
    """A circuit that adds frames of `ports` ranks in rank order and sends each sum to every rank.

    rx[k]  stream of Beat from rank k; always ready within a frame
    tx[k]  stream of Beat to rank k; the same frames for all ranks, in order
    bus    the registers of `node_registers`: see docs/circuits/node.md
    strangers, overruns  of a node between MACs, a bit for each port: a packet, or a frame, was
                         dropped before it came here; both are counted

    The node gives a beat of sums a cycle for fp32 and int32, and one every other cycle for 16-bit
    types. A frame is reduced when every port has received it completely, so a frame of b beats
    comes out b + latency cycles after its first beat came in. A rank may take its sums up to
    `slots` frames later than the others. The node keeps its last `slots` sums and sends a sum
    again, to one rank, when that rank sends its contribution to that sum again. Frames that do not
    agree are answered by a frame of kind ABORT without a payload, in place of their sum.

    A reset by the registers cuts no frame on the streams: see FrameInlet and FrameOutlet.

    The twin (bit-exact Python model) is slackline.circuit.NodeTwin.
    """

    def __init__(self, options: NodeOptions, *, between_macs: bool = False) -> None:
        self.options, self.between_macs = options, between_macs
        beats = stream.Signature(Beat(options.lanes))
        dropped = {name: In(options.ports) for name in _DROPPED if between_macs}
        super().__init__(
            {
                "rx": In(beats).array(options.ports),
                "tx": Out(beats).array(options.ports),
                "bus": In(BUS),
                **dropped,
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.bank = bank = Bank(node_registers(self.options))
        wiring.connect(m, wiring.flipped(self.bus), bank.bus)
        settings = bank.settings
        enable = settings["control"][0]
        cut = Signal()
        m.d.comb += cut.eq(~enable | Cat(bank.stores[name] for name in RESETTING).any())
        core = Module()
        m.submodules.core = ResetInserter(cut)(core)
        absent = settings["absent"][: self.options.ports]

        core.submodules.matcher = matcher = Matcher(self.options.ports)
        core.submodules.issuer = issuer = Issuer(self.options)
        core.submodules.reducer = reducer = Reducer(self.options)
        core.submodules.writer = writer = HeaderWriter(self.options, reducer.latency)
        core.submodules.sums = sums = SumBuffer(self.options, reducer.depth)
        receivers = []
        for port in range(self.options.ports):
            receiver = self._port(core, port, bank, matcher, issuer, reducer)
            receivers.append(receiver)
            wiring.connect(core, receiver.again, sums.again[port])
            m.submodules[f"inlet_{port}"] = inlet = FrameInlet(self.options.lanes)
            m.submodules[f"outlet_{port}"] = outlet = FrameOutlet(self.options.lanes)
            m.d.comb += [inlet.cut.eq(cut), outlet.cut.eq(cut)]
            wiring.connect(m, wiring.flipped(self.rx[port]), inlet.i)
            stage = port_stage(self.options)
            if stage is None:
                wiring.connect(m, inlet.o, receiver.i)
            else:
                core.submodules[f"stage_{port}"] = stage
                wiring.connect(m, inlet.o, stage.i)
                wiring.connect(core, stage.o, receiver.i)
            wiring.connect(m, sums.o[port], outlet.i)
            wiring.connect(m, outlet.o, wiring.flipped(self.tx[port]))
            m.d.comb += [
                bank.counts[f"port{port}_awaited"].eq(issuer.awaited[port] & ~cut),
                bank.counts[f"port{port}_untaken"].eq(sums.untaken[port] & ~cut),
                bank.counts[f"port{port}_resent"].eq(sums.resent[port] & ~cut),
            ]
            for name in _DROPPED if self.between_macs else ():
                m.d.comb += bank.counts[f"port{port}_{name}"].eq(getattr(self, name)[port])
        m.d.comb += [
            getattr(writer, name).eq(settings[name]) for name in ("job", "epoch", "source")
        ]
        m.d.comb += [part.absent.eq(absent) for part in (matcher, issuer, reducer, sums)]
        wiring.connect(core, matcher.o, issuer.frames)
        wiring.connect(core, writer.o, reducer.headers)
        wiring.connect(core, reducer.o, sums.i)
        m.d.comb += [
            issuer.agreed.eq(matcher.agreed),
            issuer.comparing.eq(matcher.comparing),
            issuer.threshold.eq(settings["threshold"]),
            issuer.local_ports.eq(settings["local_ports"]),
            issuer.room.eq(reducer.room),
            reducer.token.eq(issuer.token),
            reducer.uses_room.eq(issuer.uses_room),
            writer.frame.eq(issuer.begun_frame),
            writer.refused.eq(issuer.token.skip),
            writer.begin.eq(issuer.begun),
            bank.counts["frames"].eq(issuer.reduced),
            bank.counts["busy"].eq(issuer.uses_room),
            bank.counts["mismatched"].eq(issuer.token.skip),
            sums.begin.eq(issuer.begun),
            sums.sequence.eq(issuer.begun_frame.sequence),
            bank.counts["forced"].eq(issuer.forced),
        ]
        m.d.comb += [bank.counts[name].eq(issuer.stalls[name] & ~cut) for name in STALLS]
        self._claims(core, platform, receivers, matcher, issuer, reducer, writer)
        return m

    def _claims(
        self,
        m: Module,
        platform: object,
        receivers: list[Receiver],
        matcher: Matcher,
        issuer: Issuer,
        reducer: Reducer,
        writer: "HeaderWriter",
    ) -> None:
        """Add the invariants that the node's parts require of each other, for formal proofs."""
        for receiver, delay in zip(receivers, reducer.delays, strict=True):
            # The proofs know nothing of the contents of memories. A port accepts only such frames.
            length = receiver.heads.payload.length
            assume(m, platform, (length != 0) & (length <= self.options.payload_bytes))
            leaving = (
                (each.payload & each.step & each.last) | each.skip
                for each in reducer.tokens[:delay]
            )
            claim(
                m,
                platform,
                receiver.matched == (matcher.o.valid & ~receiver.absent),
                # A slot is in use until a token (the control bits of a beat) reaches the port: the
                # token of the frame's last beat, or the token that drops the frame.
                receiver.used
                == Mux(
                    receiver.absent,
                    0,
                    receiver.fill + issuer.beats.any() + sum(leaving, Const(0)),
                ),
            )
        beats = self.options.header_beats
        tokens = Cat(each.header for each in reducer.tokens)
        waiting = beats * (writer.begun + writer.summed + writer.headers.level) - writer.at
        claim(
            m,
            platform,
            issuer.active == (issuer.headers.any() | issuer.beats.any()),
            # Each header beat that was made has a token, which is in the delay line or has yet to
            # begin. No token reaches the queue of header beats before its header beat.
            waiting == issuer.headers + ones(tokens),
            ~writer.begun | (issuer.active & (issuer.headers == beats)),
            ~writer.summed | (issuer.headers + reducer.tokens[0].header == beats),
            ~writer.at.any() | writer.o.valid,
            ~writer.o.ready | writer.o.valid,
            ~writer.headers.w_en | writer.headers.w_rdy,
        )

    def _port(
        self,
        m: Module,
        port: int,
        bank: Bank,
        matcher: Matcher,
        issuer: Issuer,
        reducer: Reducer,
    ) -> Receiver:
        options = self.options
        m.submodules[f"receiver_{port}"] = receiver = Receiver(options, port)
        wiring.connect(m, receiver.heads, matcher.heads[port])
        now = reducer.now[port]
        present = ~receiver.absent
        slot = Signal(range(options.slots), name=f"slot_{port}")
        beat = Signal(range(options.slot_beats), name=f"beat_{port}")
        ends = Signal(name=f"ends_{port}")
        m.d.comb += ends.eq(now.payload & now.step & now.last)
        with m.If(now.payload & now.step):
            m.d.sync += beat.eq(beat + 1)
        with m.If(ends):
            m.d.sync += beat.eq(0)
        with m.If(ends | now.skip):
            m.d.sync += slot.eq(slot + 1)
        m.d.comb += [
            receiver.enable.eq(bank.settings["control"][0]),
            receiver.job.eq(bank.settings["job"]),
            receiver.epoch.eq(bank.settings["epoch"]),
            receiver.first.eq(bank.settings["first"]),
            receiver.absent.eq(bank.settings["absent"][port]),
            receiver.begun.eq(issuer.begun & present),
            receiver.begun_final.eq(issuer.begun & matcher.finals[port] & present),
            receiver.released.eq((ends | now.skip) & present),
            receiver.address.eq(Cat(beat[: ceil_log2(options.slot_beats)], slot)),
            reducer.words[port].eq(receiver.word),
            issuer.fills[port].eq(receiver.fill),
            issuer.finals[port].eq(receiver.finals),
            bank.counts[f"port{port}_starved"].eq(issuer.starved[port]),
        ]
        m.d.comb += [bank.counts[f"port{port}_{name}"].eq(receiver.events[name]) for name in EVENTS]
        return receiver


class HeaderWriter(wiring.Component):
    """A generator of the headers of reduced frames; its output `o` gives each header in beats.

    The first beat comes three cycles after `begin` at the earliest. A reduced frame's header
    repeats the fields of the frames that were added, names `source` as the sender, and acknowledges
    those frames. The header has no checksum of the payload, because the sum is not known when the
    header leaves. With `refused`, the frames did not agree: the header is that of an ABORT.
    """

    def __init__(self, options: NodeOptions, ahead: int) -> None:
        """Size the queue for headers that begin up to `ahead` cycles before they are taken."""
        self.options = options
        self.headers = SyncFIFO(width=HEADER.size, depth=1 << (ahead + 4).bit_length())
        self.begun, self.summed = Signal(), Signal()
        self.at = Signal(range(options.header_beats))
        """The number of beats of the queue's first header that have been taken."""
        super().__init__(
            {
                "begin": In(1),
                "frame": In(Frame()),
                "refused": In(1),
                "job": In(32),
                "epoch": In(32),
                "source": In(16),
                "o": Out(stream.Signature(32 * options.lanes)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        options = self.options
        header = Signal(HEADER)
        checked = HEADER["header_checksum"].offset
        m.submodules.crc = crc = Crc(checked // 8)
        m.submodules.headers = headers = self.headers
        begun, summed, at = self.begun, self.summed, self.at
        m.d.sync += [
            begun.eq(self.begin),
            summed.eq(begun),
            header.magic.eq(MAGIC),
            header.version.eq(VERSION),
            header.kind.eq(Mux(self.refused, FrameKind.ABORT, FrameKind.DATA)),
            header.job.eq(self.job),
            header.epoch.eq(self.epoch),
            header.source.eq(self.source),
            header.op.eq(ALL_REDUCE_SUM),
            header.acknowledge.eq(after(self.frame.sequence)),
        ]
        m.d.sync += header.length.eq(Mux(self.refused, 0, self.frame.length))
        same = ("dtype", "tag", "sequence", "offset", "total", "flags")
        m.d.sync += [header[name].eq(self.frame[name]) for name in same]
        held = Signal(checked)
        m.d.sync += held.eq(header.as_value()[:checked])
        m.d.comb += [
            crc.start.eq(begun),
            crc.valid.eq(begun),
            crc.data.eq(header.as_value()[:checked]),
            headers.w_en.eq(summed),
            headers.w_data.eq(Cat(held, crc.crc)),
        ]
        beat_bits = 32 * options.lanes
        final = Const(options.header_beats - 1)
        m.d.comb += [
            self.o.valid.eq(headers.r_rdy),
            self.o.payload.eq(headers.r_data.word_select(at, beat_bits)),
            headers.r_en.eq(self.o.ready & (at == final)),
        ]
        with m.If(self.o.ready):
            m.d.sync += at.eq(at + 1)
            with m.If(at == final):
                m.d.sync += at.eq(0)
        return m

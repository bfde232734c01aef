"""The completion queue: each entry is written to host memory after the sum that it reports."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from slackline.circuit.frame import Beat
from slackline.circuit.options import RingOptions
from slackline.circuit.proof import claim
from slackline.circuit.registers import COMPLETION, Code
from slackline.circuit.ring._layouts import DmaRequest, Key
from slackline.circuit.ring.queue._descriptors import ENTRIES_BITS, Refusal, entries_of

__all__ = ["CompletionQueue"]


class CompletionQueue(wiring.Component):
    """A writer of the completion queue: one entry for each operation that is done or was refused.

    base, bits   registers: the queue's address, a multiple of 16; log2 of its entries
    rung, value  a doorbell: the host has taken `value` entries since the reset, modulo 2^32
    wrong        `value` exceeds the number of written entries, and the doorbell is ignored
    tail, taken  the number of entries written; the number of entries that the host has taken
    head         the head of the descriptor queue, which each entry repeats
    done         stream of Key: operations that are done
    refusals     stream of Refusal
    failed       stream of Key: operations whose data could not be read
    requests     stream of DmaRequest
    o            stream of Beat, `last` at the end of each request
    any          there is an entry that the host has not taken
    full         an entry waits because the queue is full

    The difference of `tail` and `taken` never exceeds the number of the queue's entries.
    """

    def __init__(self, options: RingOptions) -> None:
        self.options = options
        super().__init__(
            {
                "base": In(64),
                "bits": In(32),
                "rung": In(1),
                "value": In(32),
                "wrong": Out(1),
                "tail": Out(32),
                "taken": Out(32),
                "head": In(32),
                "done": In(stream.Signature(Key())),
                "refusals": In(stream.Signature(Refusal())),
                "failed": In(stream.Signature(Key())),
                "requests": Out(stream.Signature(DmaRequest())),
                "o": Out(stream.Signature(Beat(options.lanes))),
                "any": Out(1),
                "full": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        entries, here = Signal(ENTRIES_BITS + 1), Signal(32)
        rung, value = Signal(), Signal(32)
        m.d.sync += [entries.eq(entries_of(self.bits)), rung.eq(self.rung), value.eq(self.value)]
        m.d.comb += [
            here.eq(self.tail - self.taken),
            self.any.eq(here.any()),
            self.wrong.eq(rung & ((value - self.taken)[:32] > here)),
        ]
        with m.If(rung & ~self.wrong):
            m.d.sync += self.taken.eq(value)
        writing = self._write(m, entries, here)
        most = entries_of(self.bits)
        claim(
            m,
            platform,
            (here + writing)[:33] <= most,
            (entries == most) | (entries == 0),
        )
        return m

    def _write(self, m: Module, entries: Signal, here: Signal) -> Value:
        """Write entries, one at a time, while the queue has room.

        Returns a signal that is 1 while an entry is being written.
        """
        options = self.options
        bits = 8 * COMPLETION.size
        layout = data.FlexibleLayout(
            bits,
            {each.name: data.Field(8 * each.width, 8 * each.offset) for each in COMPLETION.fields},
        )
        entry = Signal(layout)
        done, refusals, failed = self.done, self.refusals, self.failed
        refused = refusals.payload.key.as_value()
        key = Mux(done.valid, done.payload.as_value(), refused)
        code = Mux(done.valid, Code.DONE, refusals.payload.code)
        fails = failed.valid & ~done.valid
        waits, room = Signal(), Signal()
        beats = max(1, COMPLETION.size // options.beat_bytes)
        at = Signal(range(beats))
        last = at == beats - 1
        request, beat = self.requests.payload, self.o.payload
        mask = entries - 1
        m.d.comb += [
            waits.eq(done.valid | refusals.valid | failed.valid),
            room.eq(here < entries),
            self.full.eq(waits & ~room),
            request.address.eq(self.base + ((self.tail & mask) << ceil_log2(COMPLETION.size))),
            request.bytes.eq(COMPLETION.size),
            beat.data.eq(entry.as_value()[: 32 * options.lanes]),
            beat.last.eq(last),
        ]
        with m.FSM() as fsm:
            with m.State("WAIT"):
                m.d.sync += [
                    Cat(entry.tag, entry.chunk).eq(Mux(fails, failed.payload.as_value(), key)),
                    entry.code.eq(Mux(fails, Code.READ, code)),
                    entry.head.eq(self.head),
                    # The memory is zeros before the first pass through the queue, so the phase of
                    # the first pass is 1.
                    entry.phase.eq(~(self.tail >> self.bits[:5])[0]),
                ]
                with m.If(waits & room):
                    m.d.comb += [
                        done.ready.eq(1),
                        failed.ready.eq(~done.valid),
                        refusals.ready.eq(~done.valid & ~failed.valid),
                    ]
                    m.next = "ASK"
            with m.State("ASK"):
                m.d.comb += self.requests.valid.eq(1)
                with m.If(self.requests.ready):
                    m.next = "WRITE"
            with m.State("WRITE"):
                m.d.comb += self.o.valid.eq(1)
                with m.If(self.o.ready):
                    m.d.sync += [
                        at.eq(Mux(last, 0, at + 1)),
                        entry.as_value().eq(Cat(entry.as_value()[32 * options.lanes :])),
                    ]
                    with m.If(last):
                        m.d.sync += self.tail.eq(self.tail + 1)
                        m.next = "WAIT"
        return ~fsm.ongoing("WAIT")

"""A ring NIC's access to its host's memory: reads of contributions, writes of sums."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO, SyncFIFOBuffered
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from slackline.circuit.frame import Beat
from slackline.circuit.options import RingOptions
from slackline.circuit.ring._datapath import Summed
from slackline.circuit.ring._layouts import DmaRequest, Job, Key

__all__ = ["RingReads", "RingWrites"]

_FRAMES = 4
"""The number of frames of sums that may wait to be written."""


class RingReads(wiring.Component):
    """A buffer of this host's contributions, which are prefetched from memory in whole frames.

    A read has failed if it is marked as `bad`, or has fewer or more beats than were requested. The
    frames before it are taken as usual. Neither its frame nor any later one becomes whole, until
    the circuit is reset: no number that was not read is ever added.

    reserved  beats that are requested; only while there is `room`
    room      two bits: there is room for one frame of the greatest length; for two such frames
    i         stream of Beat: the requested data, in order; ready for all that was requested
    failed    a read has failed, and all frames before it were begun; `fails`: a pulse as it fails
    word      the next beat, valid once its frame is `whole`; `taken` moves on to the beat after it
    begun     a whole frame is being taken
    """

    def __init__(self, options: RingOptions) -> None:
        self.options = options
        super().__init__(
            {
                "i": In(stream.Signature(Beat(options.lanes))),
                "reserved": In(range(options.slot_beats + 1)),
                "room": Out(2),
                "word": Out(32 * options.lanes),
                "taken": In(1),
                "whole": Out(1),
                "begun": In(1),
                "failed": Out(1),
                "fails": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        options = self.options
        depth = options.read_beats
        beats = ceil_log2(options.slot_beats + 1)
        m.submodules.requested = requested = SyncFIFO(width=beats, depth=depth)
        at, stopped = Signal(beats), Signal()
        takes = self.i.valid & self.i.ready & ~stopped
        right_end = self.i.payload.last == (at + 1 == requested.r_data)
        m.d.comb += [
            requested.w_data.eq(self.reserved),
            requested.w_en.eq(self.reserved.any()),
            requested.r_en.eq(takes & self.i.payload.last),
            self.fails.eq(takes & (~right_end | (self.i.payload.last & self.i.payload.bad))),
        ]
        with m.If(takes):
            m.d.sync += at.eq(Mux(self.i.payload.last, 0, at + 1))
        with m.If(self.fails):
            m.d.sync += stopped.eq(1)
        m.submodules.words = words = SyncFIFOBuffered(width=32 * options.lanes, depth=depth)
        free = Signal(range(depth + 1), init=depth)
        frames = Signal(range(depth + 1))
        # The FIFO shows written data two cycles later, so a frame is whole only then.
        ended = Signal(3)
        m.d.sync += [
            free.eq(free - self.reserved + self.taken),
            ended.eq((takes & self.i.payload.last & ~self.fails) | ended << 1),
            frames.eq(frames + ended[-1] - self.begun),
        ]
        m.d.comb += [
            self.i.ready.eq(requested.r_rdy | stopped),
            self.room.eq(Cat(free >= options.slot_beats, free >= 2 * options.slot_beats)),
            self.whole.eq(frames.any()),
            words.w_data.eq(self.i.payload.data),
            words.w_en.eq(takes),
            self.failed.eq(stopped & ~ended.any() & ~frames.any()),
            self.word.eq(words.r_data),
            words.r_en.eq(self.taken),
        ]
        return m


class RingWrites(wiring.Component):
    """A buffer of sums on their way to the host, with a queue of the operations that are completed.

    begun, job   a frame for the host is begun; only while there is `room`
    valid, i     the frame's beats
    requests     stream of DmaRequest
    beats        stream of Beat; `last` ends a request
    completions  stream of Key, each after the operation's last beat
    completed    a pulse: an operation's last beat has left

    The write of an operation's last frame is requested only when there is room for the operation's
    completion. Otherwise a write could wait for completions that themselves wait behind the write.
    """

    def __init__(self, options: RingOptions) -> None:
        self.options = options
        super().__init__(
            {
                "begun": In(1),
                "job": In(Job(options)),
                "room": Out(1),
                "valid": In(1),
                "i": In(Summed(options.lanes)),
                "requests": Out(stream.Signature(DmaRequest())),
                "beats": Out(stream.Signature(Beat(options.lanes))),
                "completions": Out(stream.Signature(Key())),
                "completed": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        options, job = self.options, self.job
        depth = _FRAMES * options.slot_beats
        word = 32 * options.lanes
        # Even very short frames may begin in all slots before the first of them is written.
        ahead = 2 * options.slots
        m.submodules.words = words = SyncFIFOBuffered(width=word + 1, depth=depth)
        m.submodules.asked = asked = SyncFIFO(width=DmaRequest().size + 1, depth=ahead)
        m.submodules.ends = ends = SyncFIFO(width=Key().size + 1, depth=ahead)
        m.submodules.done = done = SyncFIFO(width=Key().size, depth=options.operations)
        free = Signal(range(depth + 1), init=depth)
        begins = self.begun & job.store
        beats = (job.size + (options.beat_bytes - 1)) >> ceil_log2(options.beat_bytes)
        moves = self.beats.valid & self.beats.ready
        request = Signal(DmaRequest())
        last = words.r_data[-1]
        places = Signal(range(options.operations + 1), init=options.operations)
        asks, ends_one = self.requests.valid & self.requests.ready, asked.r_data[-1]
        given = self.completions.valid & self.completions.ready
        m.d.sync += places.eq(places - (asks & ends_one) + given)
        with m.If(begins):
            m.d.sync += free.eq(free - beats + moves)
        with m.Else():
            m.d.sync += free.eq(free + moves)
        m.d.comb += [
            self.room.eq((free >= options.slot_beats) & asked.w_rdy & ends.w_rdy),
            request.address.eq(job.address),
            request.bytes.eq(job.size),
            asked.w_data.eq(Cat(request, job.ends)),
            asked.w_en.eq(begins),
            ends.w_data.eq(Cat(job.key, job.ends)),
            ends.w_en.eq(begins),
            words.w_data.eq(self.i.data),
            words.w_data[-1].eq(self.i.last),
            words.w_en.eq(self.valid & self.i.store),
            self.requests.payload.as_value().eq(asked.r_data[:-1]),
            self.requests.valid.eq(asked.r_rdy & (places.any() | ~ends_one)),
            asked.r_en.eq(asks),
            self.beats.payload.data.eq(words.r_data[:word]),
            self.beats.payload.last.eq(last),
            self.beats.valid.eq(words.r_rdy),
            words.r_en.eq(moves),
            ends.r_en.eq(moves & last),
            done.w_data.eq(ends.r_data[:-1]),
            done.w_en.eq(moves & last & ends.r_data[-1]),
            self.completed.eq(done.w_en),
            self.completions.payload.as_value().eq(done.r_data),
            self.completions.valid.eq(done.r_rdy),
            done.r_en.eq(self.completions.ready),
        ]
        return m

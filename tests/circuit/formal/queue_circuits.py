"""Circuits for formal claims about a ring NIC's queues: hosts and memories behave arbitrarily."""

from typing import Any

from amaranth.asserts import AnySeq
from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import wiring
from formal_circuits import frees, keeps_the_rule


def _bits(payload: Any) -> Any:
    return payload.as_value() if hasattr(payload, "as_value") else payload


def steady(m: Module, width: int) -> Value:
    """Return an arbitrary number that is the same in every cycle."""
    begun, held, at_first = Signal(), Signal(width), Signal(width)
    frees(m, at_first)
    value = Mux(begun, held, at_first)
    m.d.sync += [begun.eq(1), held.eq(value)]
    return value


def anything_in(m: Module, stream: Any) -> None:
    """Drive an input stream from an arbitrary source that keeps the rule of streams."""
    payload = _bits(stream.payload)
    frees(m, stream.valid)
    m.d.comb += payload.eq(AnySeq(len(payload)))
    keeps_the_rule(m, payload, stream.valid, stream.ready, inward=True)


def anything_out(m: Module, stream: Any) -> None:
    """Connect an output to an arbitrary reader, and assert that it keeps the rule of streams."""
    frees(m, stream.ready)
    keeps_the_rule(m, _bits(stream.payload), stream.valid, stream.ready, inward=False)


class Queue(wiring.Component):
    """The descriptor or completion queue, with arbitrary doorbells and an arbitrary length."""

    def __init__(self, queue: Any, into: tuple[str, ...], out: tuple[str, ...]) -> None:
        self.queue, self.into, self.out = queue, into, out
        super().__init__({})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.queue = queue = self.queue
        frees(m, queue.rung, queue.value)
        m.d.comb += [queue.bits.eq(steady(m, 32)), queue.base.eq(steady(m, 64))]
        for name in self.into:
            anything_in(m, getattr(queue, name))
        for name in self.out:
            anything_out(m, getattr(queue, name))
        return m


class Shared(wiring.Component):
    """A DMA stream that two arbitrary users share."""

    def __init__(self, shared: Any, into: tuple[str, ...], out: tuple[str, ...]) -> None:
        self.shared, self.into, self.out = shared, into, out
        super().__init__({})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.shared = shared = self.shared
        for name in self.into:
            for stream in getattr(shared, name):
                anything_in(m, stream)
        for name in self.out:
            anything_out(m, getattr(shared, name))
        if hasattr(shared, "i"):
            frees(m, shared.i.valid)
            m.d.comb += _bits(shared.i.payload).eq(AnySeq(len(_bits(shared.i.payload))))
        return m

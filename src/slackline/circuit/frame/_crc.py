"""A CRC32C circuit that takes a word of bytes in each cycle, derived from `slackline.wire`."""

from functools import reduce
from operator import xor

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from slackline.wire import crc32c

__all__ = ["Crc"]

_ONES = 0xFFFFFFFF


def _advance(state: int, data: bytes) -> int:
    """Return the CRC register's value after `data`, without the inversions at both ends.

    The result is linear over XOR in both arguments.
    """
    return crc32c(data, state ^ _ONES) ^ _ONES


_INTACT = _advance(_ONES, crc32c(b"").to_bytes(4, "little"))
"""The register's value after any bytes followed by their own checksum."""


class Crc(wiring.Component):
    """A CRC32C calculator that takes the `width` bytes of `data` in each cycle with `valid` high.

    start   with `valid`: a new checksum begins with these bytes
    crc     a cycle later: the checksum of all bytes since `start`
    intact  a cycle later: the bytes end with their own correct checksum, as a frame header does

    The twin (bit-exact Python model) is slackline.wire.crc32c.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        super().__init__(
            {
                "data": In(8 * width),
                "valid": In(1),
                "start": In(1),
                "crc": Out(32),
                "intact": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        state = Signal(32)
        before = Mux(self.start, _ONES, state)
        nothing = bytes(self.width)
        by_state = [_advance(1 << k, nothing) for k in range(32)]
        by_data = [
            _advance(0, (1 << k).to_bytes(self.width, "little")) for k in range(8 * self.width)
        ]
        after = Cat(
            *(_parity(before, by_state, k) ^ _parity(self.data, by_data, k) for k in range(32))
        )
        with m.If(self.valid):
            m.d.sync += state.eq(after)
        m.d.comb += [self.crc.eq(~state), self.intact.eq(state == _INTACT)]
        return m


def _parity(bits: Value, rows: list[int], bit: int) -> Value:
    """Return the parity of those bits k of `bits` for which `rows[k]` has bit number `bit` set.

    The expression masks whole words, because Verilator takes most of its time for long lists of
    single bits.
    """
    mask = sum((row >> bit & 1) << k for k, row in enumerate(rows))
    words = [bits[at : at + 32] & (mask >> at & _ONES) for at in range(0, len(bits), 32)]
    return reduce(xor, words).xor()

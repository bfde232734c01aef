"""Records that pass between the parts of a ring NIC, and between the NIC and its host."""

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import data

from slackline.circuit.frame import HEADER, Crc
from slackline.circuit.options import ELEMENT_BITS, RingOptions
from slackline.wire import MAGIC, VERSION

__all__ = ["CHECKED", "Arrived", "Descriptor", "DmaRequest", "Job", "Key", "compose", "seal"]

CHECKED = HEADER["header_checksum"].offset
"""Bits of a header that its checksum covers."""


class Key(data.StructLayout):
    """The identification of an operation: its tag and chunk, the same on all ranks."""

    def __init__(self) -> None:
        super().__init__({"tag": 64, "chunk": 16})


class Descriptor(data.StructLayout):
    """An operation, as the host posts it: see RingOperation."""

    def __init__(self) -> None:
        super().__init__(
            {
                "tag": 64,
                "source": 64,
                "target": 64,
                "total": 64,
                "frame_bytes": 32,
                "chunk": 16,
                "start": 16,
                "dtype": 8,
            }
        )


class DmaRequest(data.StructLayout):
    """A request for `bytes` of the host's memory from `address` on, moved in whole beats."""

    def __init__(self) -> None:
        super().__init__({"address": 64, "bytes": 32})


class Arrived(data.StructLayout):
    """The fields of an accepted frame's header that the receiver stores."""

    def __init__(self) -> None:
        super().__init__(
            {"dtype": 8, "key": Key(), "offset": 64, "total": 64, "length": 32},
        )


class Job(data.StructLayout):
    """A job of a ring NIC's datapath: one frame's way through the adders, and its destinations.

    drop     the frame was not due: only its slot is to be freed
    passing  the frame comes from the predecessor, and its slot is to be freed
    local    this host's contribution is added
    finish   the sum is final: 16-bit types are rounded
    send     the result leaves for the successor, with `length` bytes, as `final` or partial
    enters   the result enters its channel at this NIC: it is the first partial sum of the frame's
             data, or the final sum that this rank computes
    store    the result goes to the host at `address`, `size` bytes
    ends     the frame is the last one of its operation
    beats    beats of fp32 for partial sums of 16-bit types, otherwise beats of the elements
    """

    def __init__(self, options: RingOptions) -> None:
        bits = ("drop", "passing", "local", "finish", "send", "enters", "final", "store", "ends")
        super().__init__(
            {
                **dict.fromkeys(bits, 1),
                "element": ELEMENT_BITS,
                "dtype": 8,
                "beats": range(options.slot_beats + 1),
                "key": Key(),
                "offset": 64,
                "total": 64,
                "length": 32,
                "address": 64,
                "size": 32,
            }
        )


def compose(m: Module, header: data.View, place: data.View, **fields: object) -> None:
    """Drive `header` with the values common to all headers of this NIC, and with `fields`.

    The checksum is left to `seal`.
    """
    same = {
        "magic": MAGIC,
        "version": VERSION,
        "job": place.job,
        "epoch": place.epoch,
        "source": place.rank,
    }
    m.d.comb += [header[name].eq(value) for name, value in (same | fields).items()]


def seal(m: Module, header: data.View, valid: Value) -> data.View:
    """Return a signal of the header with its checksum, two cycles after `valid`."""
    m.submodules.crc = crc = Crc(CHECKED // 8)
    # The header goes through a register, because Verilator 5.006 computes a wrong parity of a word
    # that joins constants and signals.
    taken, held = Signal(CHECKED), Signal(CHECKED)
    begun = Signal()
    sealed = Signal(HEADER)
    m.d.sync += [taken.eq(header.as_value()[:CHECKED]), begun.eq(valid), held.eq(taken)]
    m.d.comb += [
        crc.data.eq(taken),
        crc.valid.eq(begun),
        crc.start.eq(begun),
        sealed.as_value()[:CHECKED].eq(held),
        sealed.header_checksum.eq(crc.crc),
    ]
    return sealed

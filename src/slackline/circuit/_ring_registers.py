"""The registers of a ring NIC, from one description."""

from slackline.circuit._registers import Register, numbered
from slackline.circuit._ring_device import RingOptions

__all__ = ["RING_COUNTERS", "ring_registers"]

_IDENTITY = 0x534C524E
_SETTINGS = (
    ("control", 0, "bit 0: takes part; while it is 0 all but the settings is reset"),
    ("job", 0, "the job of all frames"),
    ("epoch", 0, "the epoch of all frames"),
    ("rank", 0, "this NIC's place in the ring"),
    ("ranks", 2, "NICs in the ring, at least 2"),
    ("plan", 0, "the plan's id that frames carry"),
    ("timeout", 0x4000, "cycles without progress until frames are sent again"),
)
RING_COUNTERS = (
    ("accepted", "frames taken"),
    ("malformed", "frames dropped: damaged, cut, too long, or not to be summed here"),
    ("foreign", "frames dropped: another job, epoch or rank"),
    ("repeated", "frames dropped: they came before; they are acknowledged again"),
    ("unordered", "frames dropped: beyond the slots"),
    ("unexpected", "frames taken and dropped: of no open operation, or not the one that is due"),
    ("answers_dropped", "frames of the successor dropped: neither an ACK nor a GRANT for this NIC"),
    ("frames", "frames sent"),
    ("resent", "frames sent again"),
    ("completed", "operations whose sum the host has"),
    ("busy", "cycles in which a beat entered the adders"),
    ("adder", "stalls: between frames"),
    ("no_credit", "stalls: the successor has not freed a slot"),
    ("no_local_data", "stalls: the host's data of the next frame are not here"),
    ("no_peer_data", "stalls: operations are open, no frame of them is here"),
    ("no_host_room", "stalls: the host does not take sums"),
)


def ring_registers(options: RingOptions) -> tuple[Register, ...]:
    """The registers of a ring NIC, by address."""
    constants = [
        ("identity", "0x534C524E", _IDENTITY),
        ("lanes", "words of 32 bits in a beat", options.lanes),
        ("slots", "frames of each channel in, and out", options.slots),
        ("payload_bytes", "the longest payload", options.payload_bytes),
        ("operations", "operations that may be open", options.operations),
    ]
    return numbered(constants, _SETTINGS, RING_COUNTERS)

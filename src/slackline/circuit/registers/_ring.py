"""The registers of a ring NIC and of its queues."""

from slackline.circuit.options import RingOptions
from slackline.circuit.registers._register import Register, numbered

__all__ = ["RING_COUNTERS", "nic_registers", "queue_registers", "ring_registers"]

_IDENTITY = 0x534C524E
_SETTINGS = (
    ("control", 0, "bit 0: takes part; while it is 0 all but the settings is reset"),
    ("job", 0, "the job of all frames"),
    ("epoch", 0, "the epoch of all frames"),
    ("rank", 0, "this NIC's place in the ring"),
    ("ranks", 2, "NICs in the ring, at least 2"),
    ("plan", 0, "the plan's id that frames carry"),
    (
        "timeout",
        0x4000,
        "cycles without progress until frames are sent again, doubled each time; not 0",
    ),
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
    ("reads_failed", "reads of the host's memory that failed: the NIC adds no more of its data"),
)


_QUEUES_AT = 0x100
_QUEUES = (
    ("descriptor_base_low", "setting", "the descriptor queue's address, a multiple of 64"),
    ("descriptor_base_high", "setting", "its upper half"),
    ("descriptor_bits", "setting", "log2 of the descriptor queue's entries, at most 16"),
    ("descriptor_tail", "doorbell", "descriptors written since control bit 0 was set"),
    ("descriptor_head", "state", "descriptors that were opened or refused: their entries are free"),
    ("completion_base_low", "setting", "the completion queue's address, a multiple of 16"),
    ("completion_base_high", "setting", "its upper half"),
    ("completion_bits", "setting", "log2 of the completion queue's entries, at most 16"),
    ("completion_tail", "state", "completions written since control bit 0 was set"),
    ("completion_taken", "doorbell", "completions that the host has taken: their entries are free"),
    ("interrupt", "setting", "bit 0: `interrupt` is high while completions are not taken"),
    ("doorbells_refused", "counter", "doorbells that went back, or beyond what there can be"),
    ("descriptors_refused", "counter", "descriptors answered with a code other than 0"),
    ("no_completion_room", "counter", "cycles in which a completion waited for the host to take"),
)


def nic_registers(options: RingOptions) -> tuple[Register, ...]:
    """Return the registers of a RingNic, from address 0 on."""
    constants = [
        ("identity", "0x534C524E", _IDENTITY),
        ("lanes", "words of 32 bits in a beat", options.lanes),
        ("slots", "frames of each channel in, and out", options.slots),
        ("payload_bytes", "the longest payload", options.payload_bytes),
        ("operations", "operations that may be open", options.operations),
    ]
    return numbered(constants, _SETTINGS, RING_COUNTERS)


def queue_registers() -> tuple[Register, ...]:
    """Return the registers of the queues, at the addresses after the NIC's registers."""
    return tuple(
        Register(name=name, address=_QUEUES_AT + 4 * k, kind=kind, meaning=meaning)
        for k, (name, kind, meaning) in enumerate(_QUEUES)
    )


def ring_registers(options: RingOptions) -> tuple[Register, ...]:
    """Return the registers of a ring NIC with its queues, by address."""
    return (*nic_registers(options), *queue_registers())

"""The registers of an aggregation node."""

from slackline.circuit.options import NodeOptions
from slackline.circuit.registers._register import Register, numbered
from slackline.wire import FIRST_SEQUENCE

__all__ = ["RESETTING", "node_registers"]

_IDENTITY = 0x534C4E44

_VERSION = 2
"""The version of these registers and of the node's frames: a driver refuses any other version."""

RESETTING = ("job", "epoch", "absent", "first")
"""The settings of which a write resets buffers and sequence numbers, as bit 0 of `control` does."""

_SETTINGS = (
    ("control", 0, "bit 0: takes frames; while it is 0 buffers and sequence numbers are reset"),
    ("job", 0, "the job that frames must carry; a write resets buffers and sequence numbers"),
    ("epoch", 0, "the epoch that frames must carry; a write resets as one to `job`"),
    ("source", 0xFFFF, "the source that reduced frames carry"),
    (
        "threshold",
        1,
        "onset: frames in every port's buffer before a message's reduction starts; 0: all of them",
    ),
    ("local_ports", 0, "a bit a port: it is of this host, so its lack of data is no_local_data"),
    ("absent", 0, "a bit a port: it takes part in no sum; a write resets as one to `job`"),
    ("first", FIRST_SEQUENCE, "the first frame's sequence number; a write resets as one to `job`"),
)

_COUNTERS = (
    ("frames", "reduced frames begun"),
    ("busy", "cycles in which the adders or the header path began a beat"),
    ("adder", "stalls: the lanes take a beat's second half, or headers are compared"),
    ("no_credit", "stalls: no room for a result behind the adders"),
    ("no_local_data", "stalls within a message: a local port's buffer is empty, no peer's is"),
    ("no_peer_data", "stalls within a message: a peer's buffer is empty"),
    ("onset", "stalls before a message: frames are there, the threshold is not reached"),
    ("mismatched", "frames at the heads of all ports that did not agree, answered by an ABORT"),
    ("forced", "messages begun below the threshold, since a buffer was full"),
)

_PORT_COUNTERS = (
    ("accepted", "frames taken"),
    ("malformed", "frames dropped: damaged, cut, too long, or not to be reduced here"),
    ("foreign", "frames dropped: another job, epoch or rank"),
    ("repeated", "frames dropped: they came before; their sums are sent again"),
    ("unordered", "frames dropped: not the next in sequence, and not among the last `slots`"),
    ("starved", "stalls within a message: this port's buffer is empty"),
    ("resent", "sums sent again, since the rank sent its contribution again"),
    ("awaited", "cycles in which this port alone has no frame, and no beat begins"),
    ("untaken", "cycles in which a sum waits for this port alone to take an earlier one"),
    ("strangers", "packets dropped: of another EtherType, or to another address"),
    ("overruns", "frames dropped: they came while the node was closed or had no free slot"),
)

_PORTS_AT, _PORT_BYTES = 0x100, 0x40


def node_registers(options: NodeOptions) -> tuple[Register, ...]:
    """Return the registers of an aggregation node, by address."""
    constants = [
        ("identity", "0x534C4E44", _IDENTITY),
        ("version", "the version of these registers", _VERSION),
        ("ports", "ports of this node", options.ports),
        ("lanes", "words of 32 bits in a beat", options.lanes),
        ("slots", "frames in a port's buffer", options.slots),
        ("payload_bytes", "the longest payload", options.payload_bytes),
    ]
    table = list(numbered(constants, _SETTINGS, _COUNTERS))
    for port in range(options.ports):
        table += [
            Register(
                name=f"port{port}_{name}",
                address=_PORTS_AT + _PORT_BYTES * port + 4 * k,
                kind="counter",
                meaning=f"port {port}: {meaning}",
            )
            for k, (name, meaning) in enumerate(_PORT_COUNTERS)
        ]
    return tuple(table)

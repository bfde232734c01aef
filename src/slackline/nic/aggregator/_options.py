"""The options of an aggregation node."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from slackline.env import NICS
from slackline.errors import UsageError
from slackline.units import show_bytes

__all__ = ["AggregatorOptions"]

_SMALLEST_MEMORY = 16 << 20
WHOLE = 0xFFFFFFFF
"""The onset that waits for whole messages, as the engine takes it."""


@dataclass(frozen=True, kw_only=True)
class AggregatorOptions:
    """Options of an aggregation node."""

    host: str
    """The address to listen at; "0.0.0.0" listens at all IPv4 addresses, "::" at all addresses."""
    port: int
    """The port to listen at; 0 lets the system choose."""
    workers: int
    """The largest number of workers of a group."""
    groups: int = 32
    """The largest number of groups at a time. Each has an engine, memory and threads of its own."""
    memory_bytes: int = 1 << 30
    """The memory of each group for unfinished results, in bytes."""
    nic: str = "software"
    """The adder: "software" (the engine), "circuit" (a simulated aggregation node), or "twin" (the
    circuit's bit-exact model in Python)."""
    circuit: str = ""
    """Sizes of the circuit or twin, for example "lanes=1,slots=4,payload=64". The defaults are
    lanes=4, slots=4 and payload=4096 (bytes)."""
    node: str = ""
    """The adder elsewhere: "ethernet", an aggregation node of gateware behind `interface`; empty
    for none."""
    interface: str = ""
    """The interface whose wire leads to the node."""
    node_mac: str = "02:53:4c:00:00:00"
    """The MAC address of the node's port 0; that of port k is k higher."""
    node_patience: timedelta = timedelta(seconds=5)
    """The time without a sum after which the workers go on without the node."""
    node_hash: bool = False
    """Whether software adds beside the node, and the log has the hashes of both sums."""
    onset: int = 1
    """The number of segments (frames of a message) that must have arrived from every worker before
    reduction starts; 0 waits for whole messages (store-and-forward).
    """
    congestion: str = "auto"
    """The kernel's TCP congestion control, or "system" or "auto", as for `NicOptions`."""
    key: Path | None = None
    """A file with a secret key that the workers share."""
    without_key: bool = False
    """Serve without a key at an address that other hosts reach; any host may then use the node."""

    def __post_init__(self) -> None:
        if not 2 <= self.workers <= 255:
            raise UsageError(f"workers must be 2 to 255, not {self.workers}")
        if self.groups < 1:
            raise UsageError(f"groups must be at least 1, not {self.groups}")
        if self.nic not in NICS:
            raise UsageError(f"nic must be one of {', '.join(NICS)}, not {self.nic!r}")
        if self.node not in ("", "ethernet"):
            raise UsageError(f"node must be 'ethernet', not {self.node!r}")
        if bool(self.node) != bool(self.interface):
            raise UsageError(
                "node and interface must be given together, as --node ethernet --interface eth1"
            )
        if self.node_hash and not self.node:
            raise UsageError("node_hash needs a node: give --node ethernet with --node-hash")
        if self.node and self.nic != "software":
            raise UsageError(
                f"an aggregator has one adder: give node {self.node!r} or nic {self.nic!r}, "
                "not both"
            )
        if self.memory_bytes < _SMALLEST_MEMORY:
            raise UsageError(
                f"memory must be at least {show_bytes(_SMALLEST_MEMORY)}, not "
                f"{show_bytes(self.memory_bytes)}"
            )
        if not 0 <= self.onset < WHOLE:
            raise UsageError(f"onset must be 0 to {WHOLE - 1}, not {self.onset}")

"""The input of the health detectors: one rail's counters and last probes at one moment."""

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Probe", "RailSample"]


class Probe(NamedTuple):
    """The four timestamps of a probe frame and its answer, each by the local clock of its host."""

    sent_ns: int
    """The time at which the probe left this host."""
    received_ns: int
    """The time at which the probe arrived at the peer."""
    answered_ns: int
    """The time at which the answer left the peer."""
    back_ns: int
    """The time at which the answer arrived at this host."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RailSample:
    """The counters of one rail at one end, which only grow until the rail reconnects."""

    rank: int
    """The rank that took the sample."""
    peer: int
    """The rank at the other end."""
    rail: int = 0
    """The index of the rail within its link, the same at both ends."""
    kind: str = "tcp"
    """The kind of rail: "tcp", "udp", or "shm" for shared memory."""
    name: str = ""
    """The rail's name in messages, for example "tcp 10.77.0.1>10.77.0.2"."""
    up: bool = True
    """Whether the rail is in use; False while the engine considers the rail silent."""
    frames_sent: int = 0
    """Frames handed to the rail so far."""
    packets_sent: int = 0
    """Packets sent so far; 0 where the operating system does not report them."""
    packets_resent: int = 0
    """Packets that were considered lost and sent again."""
    queued_bytes: int = 0
    """Bytes that wait in the sender's own queue now."""
    unconfirmed_bytes: int = 0
    """Bytes that the peer has not acknowledged yet: queued and in flight."""
    confirmed_bytes: int = 0
    """Bytes that the peer has acknowledged so far."""
    received_bytes: int = 0
    """Bytes that have arrived from the peer so far."""
    busy_ns: int = 0
    """The total time during which any byte was unacknowledged."""
    probes: tuple[Probe, ...] = ()
    """The last answered probes, oldest first; probes of the previous sample may be among them."""

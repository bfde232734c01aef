"""What a NIC engine tells about one rail at one moment: cumulative counters and the last probes."""

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Probe", "RailSample"]


class Probe(NamedTuple):
    """A question and its answer. Each time is of the clock of the host where it was taken."""

    sent_ns: int
    """The question left here."""
    received_ns: int
    """It arrived there."""
    answered_ns: int
    """The answer left there."""
    back_ns: int
    """It arrived here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RailSample:
    """One rail as one of its ends sees it. Counters only grow, until the rail is dialled again."""

    rank: int
    """The rank that took the sample."""
    peer: int
    """The rank at the other end."""
    rail: int = 0
    """Which of the link's rails; the same number at both ends."""
    kind: str = "tcp"
    """"tcp", "udp" or "shm"."""
    name: str = ""
    """The rail as messages name it: "tcp 10.77.0.1>10.77.0.2"."""
    up: bool = True
    """False while the engine takes the rail for silent and sends nothing over it."""
    frames_sent: int = 0
    """Frames given to the rail."""
    packets_sent: int = 0
    """Datagrams; 0 where the system does not tell."""
    packets_resent: int = 0
    """Datagrams that were taken for lost and sent again."""
    queued_bytes: int = 0
    """What waits in the sender's own queue now."""
    unconfirmed_bytes: int = 0
    """What the peer has not confirmed now: queued and in flight."""
    confirmed_bytes: int = 0
    """What the peer has confirmed so far."""
    busy_ns: int = 0
    """How long something was unconfirmed."""
    probes: tuple[Probe, ...] = ()
    """The last answers, oldest first; those of the sample before may be among them."""

"""A named cause of slow steps."""

from dataclasses import dataclass
from enum import StrEnum

from slackline.causes._hosts import Direction

__all__ = ["Cause", "Kind"]


class Kind(StrEnum):
    """The kind of a cause; the comments state the evidence that each name needs."""

    LINK = "link"
    """One direction of a link, or both, is disturbed, and neither a NIC nor the switch explains
    it."""
    NIC = "nic"
    """All links in use over one NIC of a host, two at least, are disturbed, in both directions."""
    SWITCH = "switch"
    """All links in use over one rail, between three hosts at least, are disturbed, and no host is
    an end of all of them."""
    HOST = "host"
    """A host's ranks compute longer and wait for cores, or all of its ranks compute longer, or its
    ranks compute longer and answer late."""
    RANK = "rank"
    """One rank computes longer than before while most others do not, and waits for no core."""
    LOADER = "loader"
    """The time between two steps grows on one rank that computes as before."""
    DEAD = "dead"
    """Another rank's engine has found that the rank's process has ended; or the rank has written
    nothing for two seconds and no final counters, while operations of others failed or all of its
    links are silent."""


_LOOK_AT = {
    Kind.LINK: "the cables and switch ports between the two hosts (ip -s link, ethtool -S)",
    Kind.NIC: "the NIC, its cable and its switch port (ethtool, ethtool -S, ip -s link)",
    Kind.SWITCH: "the switch, and other traffic through it",
    Kind.HOST: "the other programs and the limits of the host's cores (top, slackline doctor)",
    Kind.RANK: "the rank's work in a step, and the clock rate of its processor",
    Kind.LOADER: "the rank's data loader, and the disk or server that it reads from",
    Kind.DEAD: "the rank's output, and the log of its host's kernel (dmesg)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A cause of slow steps, with the evidence for it."""

    kind: Kind
    """The kind of the cause."""
    name: str
    """The name of the affected part: "link 2>3", "NIC 0 of rank 2's host", "rank 3"."""
    ranks: tuple[int, ...]
    """The affected ranks in rising order; for a link its source and its target."""
    rail: int | None = None
    """The index of the affected rail (path of a link); None if no single rail is affected."""
    since_ns: int
    """The Unix time from which the evidence holds."""
    by_peers: bool = False
    """Whether the part is unlike its peers while no change has been seen, and so no verdict."""
    at_once: bool = False
    """Whether the evidence needs no time to prove itself: the engine has found it out."""
    links: frozenset[Direction] = frozenset()
    """The disturbed directions of links that the cause explains."""
    sentence: str
    """The sentence that names the cause and the evidence."""

    @property
    def proven(self) -> bool:
        """Whether the evidence needs no more time: several steps of a rank have proven it."""
        return self.at_once or (self.by_peers and self.kind in (Kind.RANK, Kind.LOADER))

    @property
    def look_at(self) -> str:
        """The parts to look at next and the commands that show them, to follow "Look at"."""
        return _LOOK_AT[self.kind]

    @property
    def told_by_verdicts(self) -> bool:
        """Whether the verdicts of ranks tell of the cause too: it is a single link's change."""
        return self.kind is Kind.LINK and not self.by_peers

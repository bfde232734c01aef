r"""The machines and the network of a simulation, as data: hosts, their NICs and cores, one switch.

    host 0  NIC 0 ===\                    /=== NIC 0  host 2
            NIC 1 ----\ === switch === --/---- NIC 1
    host 1  NIC 0 =====/                  \=== NIC 0  host 3

A NIC sends and receives at its rate at the same time. A frame leaves through NIC i of one host and
arrives through NIC i of the other host: the NICs of one number form a separate network. The latency
of a path is the sum of the latencies of the two cables.
"""

from dataclasses import dataclass, field
from typing import Self

from slackline.errors import UsageError

__all__ = ["Fabric", "Framing", "Host", "transmission_ps"]

_PS_PER_S = 10**12


def transmission_ps(nbytes: int, rate_bps: int) -> int:
    """Return the picoseconds that `nbytes` take at a rate in bits per second, rounded up."""
    return -(-nbytes * 8 * _PS_PER_S // rate_bps)


def _check(what: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        wanted = "positive" if least else "at least 0"
        raise UsageError(f"{what} must be {wanted}, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A machine: NICs, cores, and the memory through which its own ranks communicate."""

    rates_bps: tuple[int, ...]
    """The rate of each NIC in bits per second, in each direction."""
    latency_ps: int = 0
    """The latency of the cable between a NIC and the switch, in each direction."""
    cores: int = 1
    """The number of tasks that the host's processor executes at the same time."""
    frame_ps: int = 0
    """The processor time that a rank spends on each frame that it sends or receives."""
    reduce_bytes_per_second: int | None = None
    """The rate at which one core reduces received bytes; None: reducing takes no time."""
    memory_bytes_per_second: int | None = None
    """The rate of messages between ranks of this host, all together; None: no limit."""
    memory_latency_ps: int = 0
    """The latency of messages between ranks of this host."""
    burst_bytes: int = 0
    """The bytes that a NIC may send ahead of its rate after a pause, and receive likewise: the size
    of a token bucket that limits the rate."""
    ahead_bytes: int = 0
    """The bytes to one other host that a NIC takes ahead, as a socket does: the NIC takes a further
    frame while fewer bytes, headers included, wait at the NIC or are being sent. Urgent frames do
    not overtake these bytes. 0: a frame waits in the host's queue until a NIC can send it."""

    def __post_init__(self) -> None:
        if not self.rates_bps:
            raise UsageError("a host must have at least one NIC; rates_bps is empty")
        for rate_bps in self.rates_bps:
            _check("the rate of a NIC", rate_bps, 1)
        for name in ("latency_ps", "frame_ps", "memory_latency_ps", "burst_bytes", "ahead_bytes"):
            _check(name, getattr(self, name), 0)
        for name in ("cores", "reduce_bytes_per_second", "memory_bytes_per_second"):
            _check(name, getattr(self, name), 1)

    def reducing_ps(self, nbytes: int) -> int:
        """Return the picoseconds that one core needs to reduce `nbytes`, rounded up."""
        if self.reduce_bytes_per_second is None:
            return 0
        return -(-nbytes * _PS_PER_S // self.reduce_bytes_per_second)


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """The bytes that a frame adds to its payload on a wire."""

    header_bytes: int = 0
    """The frame's own header: 64 in slackline's protocol."""
    packet_bytes: int | None = None
    """The most bytes of a frame in one packet: 1448 for TCP over Ethernet; None: no limit."""
    packet_overhead_bytes: int = 0
    """The bytes that a packet adds to the frame's bytes: 66 for TCP over Ethernet, 24 more for
    preamble, checksum and the gap between packets."""

    def __post_init__(self) -> None:
        _check("header_bytes", self.header_bytes, 0)
        _check("packet_bytes", self.packet_bytes, 1)
        _check("packet_overhead_bytes", self.packet_overhead_bytes, 0)

    def packets(self, payload_bytes: int) -> int:
        """Return the number of packets of a frame, at least 1."""
        if self.packet_bytes is None:
            return 1
        return max(1, -(-(payload_bytes + self.header_bytes) // self.packet_bytes))

    def wire_bytes(self, payload_bytes: int) -> int:
        """Return the bytes that a frame occupies on a wire."""
        overhead = self.packets(payload_bytes) * self.packet_overhead_bytes
        return payload_bytes + self.header_bytes + overhead


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Hosts around one switch, and the rules of the wire between them."""

    hosts: tuple[Host, ...]
    framing: Framing = field(default_factory=Framing)
    forwards_after_bytes: int | None = 0
    """Bytes of a frame that the switch receives before it forwards the frame: 0 is cut-through, the
    size of a packet models an Ethernet switch, None is the whole frame (store-and-forward)."""
    resend_ps: int = 200 * 10**9
    """The time after which a sender resends the frames that were on a path when it went down."""
    shared_cores: int | None = None
    """The number of cores that all hosts share, as network namespaces of one machine do, in place
    of each host's `cores`; None: each host has its own cores."""
    seed: int = 0
    """The seed of all random numbers: equal seeds give equal traces."""

    def __post_init__(self) -> None:
        if not self.hosts:
            raise UsageError("a fabric must have at least one host")
        for number, host in enumerate(self.hosts):
            if len(host.rates_bps) != self.nics:
                raise UsageError(
                    f"every host must have {self.nics} NICs, like host 0; host {number} has "
                    f"{len(host.rates_bps)}"
                )
        _check("forwards_after_bytes", self.forwards_after_bytes, 0)
        _check("resend_ps", self.resend_ps, 0)
        _check("shared_cores", self.shared_cores, 1)

    @property
    def nics(self) -> int:
        """The number of NICs of each host."""
        return len(self.hosts[0].rates_bps)

    @classmethod
    def uniform(
        cls,
        hosts: int,
        *,
        rate_bps: int,
        nics: int = 1,
        latency_ps: int = 0,
        framing: Framing | None = None,
    ) -> Self:
        """Return a fabric of equal hosts; a path has two cables of `latency_ps` each."""
        if hosts < 1:
            raise UsageError(f"hosts must be a positive integer, not {hosts}")
        host = Host(rates_bps=(rate_bps,) * nics, latency_ps=latency_ps)
        return cls(hosts=(host,) * hosts, framing=framing or Framing())

    def latency_ps(self, source: int, target: int) -> int:
        """Return the latency from one host to another, or between ranks of the same host."""
        if source == target:
            return self.hosts[source].memory_latency_ps
        return self.hosts[source].latency_ps + self.hosts[target].latency_ps

"""A cluster: hosts with devices of different speeds, and the links between the hosts."""

from dataclasses import dataclass
from fractions import Fraction

from slackline.errors import UsageError

__all__ = ["Cluster", "Host", "Link", "Pair"]

_PS_PER_S = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link that carries messages at a rate, each with a latency, equally in both directions."""

    rate_bps: int
    """The rate in bits per second."""
    latency_ps: int = 0

    def __post_init__(self) -> None:
        if self.rate_bps < 1:
            raise UsageError(f"rate_bps must be positive, not {self.rate_bps}")
        if self.latency_ps < 0:
            raise UsageError(f"latency_ps must be at least 0, not {self.latency_ps}")

    def busy_ps(self, nbytes: int) -> int:
        """Return the time for which a message of `nbytes` occupies the link, rounded up."""
        return -(-8 * nbytes * _PS_PER_S // self.rate_bps)

    def delay_ps(self, nbytes: int) -> int:
        """Return the time from the send of a message of `nbytes` to its arrival."""
        return self.latency_ps + self.busy_ps(nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A host with equal devices, each of which can compute one pipeline stage."""

    name: str
    devices: int = 1
    speed: Fraction = Fraction(1)
    """The speed of a device relative to the reference device; 2 halves all times."""
    memory_bytes: int | None = None
    """The memory of each device; None where it has no limit."""

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise UsageError(f"devices of host {self.name!r} must be positive, not {self.devices}")
        if not self.speed > 0:
            raise UsageError(
                f"speed of host {self.name!r} must be positive, not {float(self.speed):g}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The link between two hosts, by the hosts' names."""

    hosts: tuple[str, str]
    link: Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Hosts and their links. Stages on one host exchange messages over `inside`.

    Each pair of consecutive stages is assumed to have the whole rate of its link.
    """

    hosts: tuple[Host, ...]
    between: Link | None = None
    """The link of every two hosts that are not in `pairs`."""
    pairs: tuple[Pair, ...] = ()
    inside: Link | None = None
    """The link between devices of one host; None where messages inside a host take no time."""

    def __post_init__(self) -> None:
        names = [each.name for each in self.hosts]
        if not names:
            raise UsageError("a cluster must have at least one host")
        for name in names:
            if names.count(name) > 1:
                raise UsageError(
                    f"hosts must have different names; {names.count(name)} are {name!r}"
                )
        seen = set()
        for pair in self.pairs:
            for name in pair.hosts:
                if name not in names:
                    raise UsageError(f"there is no host {name!r}; hosts are {', '.join(names)}")
            both = frozenset(pair.hosts)
            if len(both) < 2:
                raise UsageError(f"a pair must name two hosts, not {pair.hosts[0]!r} twice")
            if both in seen:
                raise UsageError(f"hosts {' and '.join(sorted(both))} have two links; give one")
            seen.add(both)
        if self.between is not None:
            return
        for place, above in enumerate(names):
            for below in names[place + 1 :]:
                if frozenset((above, below)) not in seen:
                    raise UsageError(
                        f"hosts {above} and {below} have no link; give one to the pair, or to all"
                    )

    @property
    def devices(self) -> int:
        """The number of devices of all hosts."""
        return sum(each.devices for each in self.hosts)

    def links(self) -> tuple[tuple[Link | None, ...], ...]:
        """Return the link of every two hosts, by the hosts' indices.

        A host's link with itself is `inside`.
        """
        own = {frozenset(pair.hosts): pair.link for pair in self.pairs}
        return tuple(
            tuple(
                self.inside
                if above is below
                else own.get(frozenset((above.name, below.name)), self.between)
                for below in self.hosts
            )
            for above in self.hosts
        )
